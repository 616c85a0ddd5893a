module {
  func.func public @main(%arg0: tensor<4x1xi1>, %arg1: tensor<4x3xf32>, %arg2: tensor<3xf32>) -> (tensor<4x3xf32>) {
    %0 = call @_where(%arg0, %arg1, %arg2) : (tensor<4x1xi1>, tensor<4x3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
    return %0 : tensor<4x3xf32>
  }
  func.func private @_where(%arg0: tensor<4x1xi1>, %arg1: tensor<4x3xf32>, %arg2: tensor<3xf32>) -> tensor<4x3xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [0, 1] : (tensor<4x1xi1>) -> tensor<4x3xi1>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>
    %2 = stablehlo.select %0, %arg1, %1 : tensor<4x3xi1>, tensor<4x3xf32>
    return %2 : tensor<4x3xf32>
  }
}
