module {
  func.func public @main(%arg0: tensor<2x3x4xbf16>, %arg1: tensor<2x4x5xbf16>) -> (tensor<2x3x5xbf16>) {
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [HIGHEST, HIGHEST] : (tensor<2x3x4xbf16>, tensor<2x4x5xbf16>) -> tensor<2x3x5xf32>
    %1 = stablehlo.convert %0 : (tensor<2x3x5xf32>) -> tensor<2x3x5xbf16>
    return %1 : tensor<2x3x5xbf16>
  }
}
