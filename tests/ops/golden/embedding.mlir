module {
  func.func public @main(%arg0: tensor<7x4xf32>, %arg1: tensor<2x3xi64>) -> (tensor<2x3x4xf32>) {
    %0 = call @_take(%arg0, %arg1) : (tensor<7x4xf32>, tensor<2x3xi64>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }
  func.func private @_take(%arg0: tensor<7x4xf32>, %arg1: tensor<2x3xi64>) -> tensor<2x3x4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<2x3xi64>) -> tensor<2x3x1xi64>
    %1 = "stablehlo.gather"(%arg0, %0) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<7x4xf32>, tensor<2x3x1xi64>) -> tensor<2x3x4xf32>
    return %1 : tensor<2x3x4xf32>
  }
}
