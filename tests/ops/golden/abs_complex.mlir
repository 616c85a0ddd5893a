module {
  func.func public @main(%arg0: tensor<3xcomplex<f32>>) -> (tensor<3xf32>) {
    %0 = stablehlo.abs %arg0 : (tensor<3xcomplex<f32>>) -> tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
