module {
  func.func public @main(%arg0: tensor<4x3xf32>) -> (tensor<4x3xbf16>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<4x3xbf16>
    %1 = stablehlo.convert %arg0 : (tensor<4x3xf32>) -> tensor<4x3xbf16>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<bf16>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<bf16>) -> tensor<4x3xbf16>
    return %1 : tensor<4x3xbf16>
  }
}
