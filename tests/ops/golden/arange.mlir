module {
  func.func public @main(%arg0: tensor<i64>, %arg1: tensor<i64>) -> (tensor<5xi64>) {
    %0 = stablehlo.iota dim = 0 : tensor<5xi64>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<i64>) -> tensor<5xi64>
    %2 = stablehlo.multiply %1, %0 : tensor<5xi64>
    %3 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<i64>) -> tensor<5xi64>
    %4 = stablehlo.add %3, %2 : tensor<5xi64>
    return %4 : tensor<5xi64>
  }
}
