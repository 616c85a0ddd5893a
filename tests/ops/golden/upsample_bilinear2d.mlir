module {
  func.func public @main(%arg0: tensor<1x2x3x3xf32>) -> (tensor<1x2x6x6xf32>) {
    %c = stablehlo.constant dense<[0, 0, 0, 1, 1, 2]> : tensor<6xi32>
    %cst = stablehlo.constant dense<[1.000000e+00, 7.500000e-01, 2.500000e-01, 7.500000e-01, 2.500000e-01, 7.500000e-01]> : tensor<6xf32>
    %c_0 = stablehlo.constant dense<[1, 1, 1, 2, 2, 2]> : tensor<6xi32>
    %cst_1 = stablehlo.constant dense<[0.000000e+00, 2.500000e-01, 7.500000e-01, 2.500000e-01, 7.500000e-01, 2.500000e-01]> : tensor<6xf32>
    %c_2 = stablehlo.constant dense<[0, 0, 0, 1, 1, 2]> : tensor<6xi32>
    %cst_3 = stablehlo.constant dense<[1.000000e+00, 7.500000e-01, 2.500000e-01, 7.500000e-01, 2.500000e-01, 7.500000e-01]> : tensor<6xf32>
    %c_4 = stablehlo.constant dense<[1, 1, 1, 2, 2, 2]> : tensor<6xi32>
    %cst_5 = stablehlo.constant dense<[0.000000e+00, 2.500000e-01, 7.500000e-01, 2.500000e-01, 7.500000e-01, 2.500000e-01]> : tensor<6xf32>
    %0 = call @_take(%arg0, %c) : (tensor<1x2x3x3xf32>, tensor<6xi32>) -> tensor<1x2x6x3xf32>
    %1 = stablehlo.reshape %cst : (tensor<6xf32>) -> tensor<6x1xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [2, 3] : (tensor<6x1xf32>) -> tensor<1x1x6x1xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1, 2, 3] : (tensor<1x1x6x1xf32>) -> tensor<1x2x6x3xf32>
    %4 = stablehlo.multiply %0, %3 : tensor<1x2x6x3xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<1x2x6x3xf32>
    %6 = stablehlo.add %5, %4 : tensor<1x2x6x3xf32>
    %7 = call @_take(%arg0, %c_0) : (tensor<1x2x3x3xf32>, tensor<6xi32>) -> tensor<1x2x6x3xf32>
    %8 = stablehlo.reshape %cst_1 : (tensor<6xf32>) -> tensor<6x1xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [2, 3] : (tensor<6x1xf32>) -> tensor<1x1x6x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2, 3] : (tensor<1x1x6x1xf32>) -> tensor<1x2x6x3xf32>
    %11 = stablehlo.multiply %7, %10 : tensor<1x2x6x3xf32>
    %12 = stablehlo.add %6, %11 : tensor<1x2x6x3xf32>
    %13 = call @_take_0(%12, %c_2) : (tensor<1x2x6x3xf32>, tensor<6xi32>) -> tensor<1x2x6x6xf32>
    %14 = stablehlo.broadcast_in_dim %cst_3, dims = [3] : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2, 3] : (tensor<1x1x1x6xf32>) -> tensor<1x2x6x6xf32>
    %16 = stablehlo.multiply %13, %15 : tensor<1x2x6x6xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<1x2x6x6xf32>
    %18 = stablehlo.add %17, %16 : tensor<1x2x6x6xf32>
    %19 = call @_take_0(%12, %c_4) : (tensor<1x2x6x3xf32>, tensor<6xi32>) -> tensor<1x2x6x6xf32>
    %20 = stablehlo.broadcast_in_dim %cst_5, dims = [3] : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %21 = stablehlo.broadcast_in_dim %20, dims = [0, 1, 2, 3] : (tensor<1x1x1x6xf32>) -> tensor<1x2x6x6xf32>
    %22 = stablehlo.multiply %19, %21 : tensor<1x2x6x6xf32>
    %23 = stablehlo.add %18, %22 : tensor<1x2x6x6xf32>
    return %23 : tensor<1x2x6x6xf32>
  }
  func.func private @_take(%arg0: tensor<1x2x3x3xf32>, %arg1: tensor<6xi32>) -> tensor<1x2x6x3xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<6xi32>, tensor<6xi32>) -> tensor<6xi1>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<6xi32>
    %4 = call @_where(%1, %3, %arg1) : (tensor<6xi1>, tensor<6xi32>, tensor<6xi32>) -> tensor<6xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<6xi32>) -> tensor<6x1xi32>
    %c_1 = stablehlo.constant dense<2> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<6x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<6x1xi32>, tensor<6x1xi32>) -> tensor<6x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<6x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<6x1xi32>, tensor<6x1xi32>) -> tensor<6x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<6x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [1] : (tensor<6x1xi1>, tensor<i1>) -> tensor<6xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 1, 3], collapsed_slice_dims = [2], start_index_map = [2], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 2, 1, 3>}> : (tensor<1x2x3x3xf32>, tensor<6x1xi32>) -> tensor<1x2x6x3xf32>
    %14 = stablehlo.broadcast_in_dim %12, dims = [2] : (tensor<6xi1>) -> tensor<1x2x6x3xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x2x6x3xf32>
    %16 = stablehlo.select %14, %13, %15 : tensor<1x2x6x3xi1>, tensor<1x2x6x3xf32>
    return %16 : tensor<1x2x6x3xf32>
  }
  func.func private @_where(%arg0: tensor<6xi1>, %arg1: tensor<6xi32>, %arg2: tensor<6xi32>) -> tensor<6xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<6xi1>, tensor<6xi32>
    return %0 : tensor<6xi32>
  }
  func.func private @_take_0(%arg0: tensor<1x2x6x3xf32>, %arg1: tensor<6xi32>) -> tensor<1x2x6x6xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<6xi32>, tensor<6xi32>) -> tensor<6xi1>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<6xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<6xi32>
    %4 = call @_where(%1, %3, %arg1) : (tensor<6xi1>, tensor<6xi32>, tensor<6xi32>) -> tensor<6xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<6xi32>) -> tensor<6x1xi32>
    %c_1 = stablehlo.constant dense<2> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<6x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<6x1xi32>, tensor<6x1xi32>) -> tensor<6x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [1] : (tensor<1xi32>) -> tensor<1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x1xi32>) -> tensor<6x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<6x1xi32>, tensor<6x1xi32>) -> tensor<6x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<6x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [1] : (tensor<6x1xi1>, tensor<i1>) -> tensor<6xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 1, 2], collapsed_slice_dims = [3], start_index_map = [3], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 2, 6, 1>}> : (tensor<1x2x6x3xf32>, tensor<6x1xi32>) -> tensor<1x2x6x6xf32>
    %14 = stablehlo.broadcast_in_dim %12, dims = [3] : (tensor<6xi1>) -> tensor<1x2x6x6xi1>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x2x6x6xf32>
    %16 = stablehlo.select %14, %13, %15 : tensor<1x2x6x6xi1>, tensor<1x2x6x6xf32>
    return %16 : tensor<1x2x6x6xf32>
  }
}
