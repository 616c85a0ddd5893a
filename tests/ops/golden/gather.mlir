module {
  func.func public @main(%arg0: tensor<4x3xf32>, %arg1: tensor<4x2xi64>) -> (tensor<4x2xf32>) {
    %0 = call @take_along_axis(%arg0, %arg1) : (tensor<4x3xf32>, tensor<4x2xi64>) -> tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x3xf32>, %arg1: tensor<4x2xi64>) -> tensor<4x2xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<4x2xi64>) -> tensor<4x2xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x2xi32>
    %2 = stablehlo.compare LT, %0, %1, SIGNED : (tensor<4x2xi32>, tensor<4x2xi32>) -> tensor<4x2xi1>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x2xi32>
    %4 = stablehlo.add %0, %3 : tensor<4x2xi32>
    %5 = stablehlo.select %2, %4, %0 : tensor<4x2xi1>, tensor<4x2xi32>
    %6 = stablehlo.reshape %5 : (tensor<4x2xi32>) -> tensor<4x2x1xi32>
    %7 = "stablehlo.gather"(%arg0, %6) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<4x3xf32>, tensor<4x2x1xi32>) -> tensor<4x2xf32>
    return %7 : tensor<4x2xf32>
  }
}
