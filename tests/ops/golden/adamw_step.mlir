module {
  func.func public @main(%arg0: tensor<4x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<4x3xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<4x3xf32> {tf.aliasing_output = 2 : i32}, %arg3: tensor<4x3xf32> {tf.aliasing_output = 3 : i32}, %arg4: tensor<f32>, %arg5: tensor<f32>, %arg6: tensor<f32>, %arg7: tensor<f32>, %arg8: tensor<f32>, %arg9: tensor<f32>) -> (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>) {
    %0 = stablehlo.multiply %arg5, %arg8 : tensor<f32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %1 = stablehlo.subtract %cst, %0 : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %3 = stablehlo.multiply %arg0, %2 : tensor<4x3xf32>
    %4 = stablehlo.subtract %arg1, %arg2 : tensor<4x3xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %5 = stablehlo.subtract %cst_0, %arg6 : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %7 = stablehlo.multiply %4, %6 : tensor<4x3xf32>
    %8 = stablehlo.add %arg2, %7 : tensor<4x3xf32>
    %9 = stablehlo.broadcast_in_dim %arg7, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %10 = stablehlo.multiply %9, %arg3 : tensor<4x3xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %11 = stablehlo.subtract %cst_1, %arg7 : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %13 = stablehlo.multiply %12, %arg1 : tensor<4x3xf32>
    %14 = stablehlo.multiply %13, %arg1 : tensor<4x3xf32>
    %15 = stablehlo.add %10, %14 : tensor<4x3xf32>
    %16 = stablehlo.sqrt %15 : tensor<4x3xf32>
    %17 = stablehlo.power %arg7, %arg4 : tensor<f32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %18 = stablehlo.subtract %cst_2, %17 : tensor<f32>
    %19 = stablehlo.sqrt %18 : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %19, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %21 = stablehlo.divide %16, %20 : tensor<4x3xf32>
    %22 = stablehlo.broadcast_in_dim %arg9, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %23 = stablehlo.add %21, %22 : tensor<4x3xf32>
    %24 = stablehlo.power %arg6, %arg4 : tensor<f32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %25 = stablehlo.subtract %cst_3, %24 : tensor<f32>
    %26 = stablehlo.divide %arg5, %25 : tensor<f32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %28 = stablehlo.multiply %27, %8 : tensor<4x3xf32>
    %29 = stablehlo.divide %28, %23 : tensor<4x3xf32>
    %30 = stablehlo.subtract %3, %29 : tensor<4x3xf32>
    return %30, %arg1, %8, %15 : tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>
  }
}
