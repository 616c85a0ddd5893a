module {
  func.func public @main(%arg0: tensor<4x3x5xbf16>) -> (tensor<1x3x1xbf16>) {
    %0 = stablehlo.convert %arg0 : (tensor<4x3x5xbf16>) -> tensor<4x3x5xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0, 2] : (tensor<4x3x5xf32>, tensor<f32>) -> tensor<3xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [1] : (tensor<3xf32>) -> tensor<1x3x1xf32>
    %3 = stablehlo.convert %2 : (tensor<1x3x1xf32>) -> tensor<1x3x1xbf16>
    return %3 : tensor<1x3x1xbf16>
  }
}
