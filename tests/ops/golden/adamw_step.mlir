module {
  func.func public @main(%arg0: tensor<4x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<4x3xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<4x3xf32> {tf.aliasing_output = 2 : i32}, %arg3: tensor<4x3xf32> {tf.aliasing_output = 3 : i32}, %arg4: tensor<f32>, %arg5: tensor<f32>, %arg6: tensor<f32>, %arg7: tensor<f32>, %arg8: tensor<f32>, %arg9: tensor<f32>) -> (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>) {
    %0 = stablehlo.reshape %arg4 : (tensor<f32>) -> tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %2 = stablehlo.broadcast_in_dim %arg6, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %3 = stablehlo.power %2, %1 : tensor<1xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.subtract %4, %3 : tensor<1xf32>
    %6 = stablehlo.broadcast_in_dim %arg5, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %7 = stablehlo.divide %6, %5 : tensor<1xf32>
    %8 = stablehlo.broadcast_in_dim %arg7, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %9 = stablehlo.power %8, %1 : tensor<1xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %11 = stablehlo.subtract %10, %9 : tensor<1xf32>
    %12 = stablehlo.sqrt %11 : tensor<1xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %14 = stablehlo.divide %13, %12 : tensor<1xf32>
    %15 = stablehlo.reshape %7 : (tensor<1xf32>) -> tensor<f32>
    %16 = stablehlo.reshape %14 : (tensor<1xf32>) -> tensor<f32>
    %17 = stablehlo.multiply %arg5, %arg8 : tensor<f32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %18 = stablehlo.subtract %cst_2, %17 : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %20 = stablehlo.multiply %arg0, %19 : tensor<4x3xf32>
    %21 = stablehlo.subtract %arg1, %arg2 : tensor<4x3xf32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %22 = stablehlo.subtract %cst_3, %arg6 : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %22, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %24 = stablehlo.multiply %21, %23 : tensor<4x3xf32>
    %25 = stablehlo.add %arg2, %24 : tensor<4x3xf32>
    %26 = stablehlo.broadcast_in_dim %arg7, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %27 = stablehlo.multiply %26, %arg3 : tensor<4x3xf32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %28 = stablehlo.subtract %cst_4, %arg7 : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %28, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %30 = stablehlo.multiply %29, %arg1 : tensor<4x3xf32>
    %31 = stablehlo.multiply %30, %arg1 : tensor<4x3xf32>
    %32 = stablehlo.add %27, %31 : tensor<4x3xf32>
    %33 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %34 = stablehlo.multiply %33, %25 : tensor<4x3xf32>
    %35 = stablehlo.sqrt %32 : tensor<4x3xf32>
    %36 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %37 = stablehlo.multiply %35, %36 : tensor<4x3xf32>
    %38 = stablehlo.broadcast_in_dim %arg9, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %39 = stablehlo.add %37, %38 : tensor<4x3xf32>
    %40 = stablehlo.divide %34, %39 : tensor<4x3xf32>
    %41 = stablehlo.subtract %20, %40 : tensor<4x3xf32>
    return %41, %arg1, %25, %32 : tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>
  }
}
