module {
  func.func public @main(%arg0: tensor<1x2x6xf32>) -> (tensor<1x2x9xf32>) {
    %0 = stablehlo.slice %arg0 [0:1, 0:2, 1:3] : (tensor<1x2x6xf32>) -> tensor<1x2x2xf32>
    %1 = stablehlo.reverse %0, dims = [2] : tensor<1x2x2xf32>
    %2 = stablehlo.slice %arg0 [0:1, 0:2, 4:5] : (tensor<1x2x6xf32>) -> tensor<1x2x1xf32>
    %3 = stablehlo.reverse %2, dims = [2] : tensor<1x2x1xf32>
    %4 = stablehlo.slice %arg0 [0:1, 0:2, 0:6] : (tensor<1x2x6xf32>) -> tensor<1x2x6xf32>
    %5 = stablehlo.concatenate %1, %4, %3, dim = 2 : (tensor<1x2x2xf32>, tensor<1x2x6xf32>, tensor<1x2x1xf32>) -> tensor<1x2x9xf32>
    return %5 : tensor<1x2x9xf32>
  }
}
