module {
  func.func public @main(%arg0: tensor<1x2x8x4xf32>, %arg1: tensor<1x2x8x4xf32>, %arg2: tensor<1x2x8x4xf32>) -> (tensor<1x2x8x4xf32>, tensor<1x2x8xf32>) {
    %0 = stablehlo.reshape %arg0 : (tensor<1x2x8x4xf32>) -> tensor<1x2x1x8x4xf32>
    %1 = stablehlo.dot_general %0, %arg1, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [3], precision = [HIGHEST, HIGHEST] : (tensor<1x2x1x8x4xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x1x8x8xf32>
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x2x1x8x8xf32>
    %3 = stablehlo.multiply %1, %2 : tensor<1x2x1x8x8xf32>
    %4 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %5 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %6 = stablehlo.compare LE, %5, %4, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %7 = call @_where(%6, %3, %cst_0) : (tensor<8x8xi1>, tensor<1x2x1x8x8xf32>, tensor<f32>) -> tensor<1x2x1x8x8xf32>
    %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.maximum across dimensions = [4] : (tensor<1x2x1x8x8xf32>, tensor<f32>) -> tensor<1x2x1x8xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x2x1x8xf32>) -> tensor<1x2x1x8x1xf32>
    %cst_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<1x2x1x8x1xf32>
    %11 = stablehlo.compare EQ, %9, %10, FLOAT : (tensor<1x2x1x8x1xf32>, tensor<1x2x1x8x1xf32>) -> tensor<1x2x1x8x1xi1>
    %c = stablehlo.constant dense<0> : tensor<i64>
    %12 = call @_where_0(%11, %c, %9) : (tensor<1x2x1x8x1xi1>, tensor<i64>, tensor<1x2x1x8x1xf32>) -> tensor<1x2x1x8x1xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2, 3, 4] : (tensor<1x2x1x8x1xf32>) -> tensor<1x2x1x8x8xf32>
    %14 = stablehlo.subtract %7, %13 : tensor<1x2x1x8x8xf32>
    %15 = stablehlo.exponential %14 : tensor<1x2x1x8x8xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %16 = stablehlo.reduce(%15 init: %cst_3) applies stablehlo.add across dimensions = [4] : (tensor<1x2x1x8x8xf32>, tensor<f32>) -> tensor<1x2x1x8xf32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2, 3] : (tensor<1x2x1x8xf32>) -> tensor<1x2x1x8x1xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<1x2x1x8x1xf32>
    %19 = stablehlo.compare EQ, %17, %18, FLOAT : (tensor<1x2x1x8x1xf32>, tensor<1x2x1x8x1xf32>) -> tensor<1x2x1x8x1xi1>
    %c_5 = stablehlo.constant dense<1> : tensor<i64>
    %20 = call @_where_0(%19, %c_5, %17) : (tensor<1x2x1x8x1xi1>, tensor<i64>, tensor<1x2x1x8x1xf32>) -> tensor<1x2x1x8x1xf32>
    %21 = stablehlo.broadcast_in_dim %20, dims = [0, 1, 2, 3, 4] : (tensor<1x2x1x8x1xf32>) -> tensor<1x2x1x8x8xf32>
    %22 = stablehlo.divide %15, %21 : tensor<1x2x1x8x8xf32>
    %23 = stablehlo.dot_general %22, %arg2, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [2], precision = [HIGHEST, HIGHEST] : (tensor<1x2x1x8x8xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x1x8x4xf32>
    %24 = stablehlo.log %17 : tensor<1x2x1x8x1xf32>
    %25 = stablehlo.add %12, %24 : tensor<1x2x1x8x1xf32>
    %26 = stablehlo.reshape %25 : (tensor<1x2x1x8x1xf32>) -> tensor<1x2x8xf32>
    %27 = stablehlo.reshape %23 : (tensor<1x2x1x8x4xf32>) -> tensor<1x2x8x4xf32>
    return %27, %26 : tensor<1x2x8x4xf32>, tensor<1x2x8xf32>
  }
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<1x2x1x8x8xf32>, %arg2: tensor<f32>) -> tensor<1x2x1x8x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [3, 4] : (tensor<8x8xi1>) -> tensor<1x2x1x8x8xi1>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<f32>) -> tensor<1x2x1x8x8xf32>
    %2 = stablehlo.select %0, %arg1, %1 : tensor<1x2x1x8x8xi1>, tensor<1x2x1x8x8xf32>
    return %2 : tensor<1x2x1x8x8xf32>
  }
  func.func private @_where_0(%arg0: tensor<1x2x1x8x1xi1>, %arg1: tensor<i64>, %arg2: tensor<1x2x1x8x1xf32>) -> tensor<1x2x1x8x1xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1x2x1x8x1xf32>
    %2 = stablehlo.select %arg0, %1, %arg2 : tensor<1x2x1x8x1xi1>, tensor<1x2x1x8x1xf32>
    return %2 : tensor<1x2x1x8x1xf32>
  }
}
