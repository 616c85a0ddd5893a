module {
  func.func public @main(%arg0: tensor<4x9xf32>) -> (tensor<4x3xf32>, tensor<4x3xi64>) {
    %values, %indices = chlo.top_k(%arg0, k = 3) : tensor<4x9xf32> -> (tensor<4x3xf32>, tensor<4x3xi32>)
    %0 = stablehlo.convert %indices : (tensor<4x3xi32>) -> tensor<4x3xi64>
    return %values, %0 : tensor<4x3xf32>, tensor<4x3xi64>
  }
}
