module {
  func.func public @main(%arg0: tensor<4x3xf32>, %arg1: tensor<4x2xi64>, %arg2: tensor<4x2xf32>) -> (tensor<4x3xf32>) {
    %0 = stablehlo.iota dim = 0 : tensor<4x2xi64>
    %1 = stablehlo.iota dim = 1 : tensor<4x2xi64>
    %c = stablehlo.constant dense<0> : tensor<i64>
    %2 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<4x2xi64>
    %3 = stablehlo.compare LT, %0, %2, SIGNED : (tensor<4x2xi64>, tensor<4x2xi64>) -> tensor<4x2xi1>
    %c_0 = stablehlo.constant dense<4> : tensor<i64>
    %4 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i64>) -> tensor<4x2xi64>
    %5 = stablehlo.add %0, %4 : tensor<4x2xi64>
    %6 = stablehlo.select %3, %5, %0 : tensor<4x2xi1>, tensor<4x2xi64>
    %c_1 = stablehlo.constant dense<0> : tensor<i64>
    %7 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i64>) -> tensor<4x2xi64>
    %8 = stablehlo.compare LT, %arg1, %7, SIGNED : (tensor<4x2xi64>, tensor<4x2xi64>) -> tensor<4x2xi1>
    %c_2 = stablehlo.constant dense<3> : tensor<i64>
    %9 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i64>) -> tensor<4x2xi64>
    %10 = stablehlo.add %arg1, %9 : tensor<4x2xi64>
    %11 = stablehlo.select %8, %10, %arg1 : tensor<4x2xi1>, tensor<4x2xi64>
    %12 = stablehlo.convert %6 : (tensor<4x2xi64>) -> tensor<4x2xi32>
    %13 = stablehlo.convert %11 : (tensor<4x2xi64>) -> tensor<4x2xi32>
    %14 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<4x2xi32>) -> tensor<4x2x1xi32>
    %15 = stablehlo.broadcast_in_dim %13, dims = [0, 1] : (tensor<4x2xi32>) -> tensor<4x2x1xi32>
    %16 = stablehlo.concatenate %14, %15, dim = 2 : (tensor<4x2x1xi32>, tensor<4x2x1xi32>) -> tensor<4x2x2xi32>
    %17 = "stablehlo.scatter"(%arg0, %16, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %18 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %18 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<4x2x2xi32>, tensor<4x2xf32>) -> tensor<4x3xf32>
    return %17 : tensor<4x3xf32>
  }
}
