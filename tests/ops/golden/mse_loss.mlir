module {
  func.func public @main(%arg0: tensor<4x3xf32>, %arg1: tensor<4x3xf32>) -> (tensor<f32>) {
    %0 = stablehlo.subtract %arg0, %arg1 : tensor<4x3xf32>
    %1 = chlo.square %0 : tensor<4x3xf32> -> tensor<4x3xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32>
    %cst_0 = stablehlo.constant dense<1.200000e+01> : tensor<f32>
    %3 = stablehlo.divide %2, %cst_0 : tensor<f32>
    return %3 : tensor<f32>
  }
}
