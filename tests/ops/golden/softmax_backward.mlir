module {
  func.func public @main(%arg0: tensor<4x6xf32>, %arg1: tensor<4x6xf32>) -> (tensor<4x6xf32>) {
    %0 = stablehlo.multiply %arg0, %arg1 : tensor<4x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x6xf32>
    %4 = stablehlo.multiply %arg1, %3 : tensor<4x6xf32>
    %5 = stablehlo.subtract %0, %4 : tensor<4x6xf32>
    return %5 : tensor<4x6xf32>
  }
}
