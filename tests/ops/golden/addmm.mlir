module {
  func.func public @main(%arg0: tensor<5xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<4x5xf32>) -> (tensor<2x5xf32>) {
    %0 = stablehlo.dot_general %arg1, %arg2, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<2x4xf32>, tensor<4x5xf32>) -> tensor<2x5xf32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<5xf32>) -> tensor<1x5xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x5xf32>) -> tensor<2x5xf32>
    %3 = stablehlo.add %2, %0 : tensor<2x5xf32>
    return %3 : tensor<2x5xf32>
  }
}
