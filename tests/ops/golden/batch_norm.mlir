module {
  func.func public @main(%arg0: tensor<2x3x4x4xf32>, %arg1: tensor<3xf32>, %arg2: tensor<3xf32>, %arg3: tensor<3xf32> {tf.aliasing_output = 1 : i32}, %arg4: tensor<3xf32> {tf.aliasing_output = 2 : i32}, %arg5: tensor<f32>, %arg6: tensor<f32>) -> (tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<2x3x4x4xf32>, tensor<f32>) -> tensor<3xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
    %cst_0 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x3x1x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<1x3x1x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2, 3] : (tensor<1x3x1x1xf32>) -> tensor<2x3x4x4xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<2x3x4x4xf32>
    %6 = chlo.square %5 : tensor<2x3x4x4xf32> -> tensor<2x3x4x4xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<2x3x4x4xf32>, tensor<f32>) -> tensor<3xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [1] : (tensor<3xf32>) -> tensor<1x3x1x1xf32>
    %cst_2 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<1x3x1x1xf32>
    %10 = stablehlo.divide %8, %9 : tensor<1x3x1x1xf32>
    %11 = stablehlo.reshape %3 : (tensor<1x3x1x1xf32>) -> tensor<3xf32>
    %12 = stablehlo.reshape %10 : (tensor<1x3x1x1xf32>) -> tensor<3xf32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %13 = stablehlo.subtract %cst_3, %arg5 : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %15 = stablehlo.multiply %14, %arg3 : tensor<3xf32>
    %16 = stablehlo.broadcast_in_dim %arg5, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %17 = stablehlo.multiply %16, %11 : tensor<3xf32>
    %18 = stablehlo.add %15, %17 : tensor<3xf32>
    %cst_4 = stablehlo.constant dense<1.03225803> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %20 = stablehlo.multiply %12, %19 : tensor<3xf32>
    %cst_5 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %21 = stablehlo.subtract %cst_5, %arg5 : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %21, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %23 = stablehlo.multiply %22, %arg4 : tensor<3xf32>
    %24 = stablehlo.broadcast_in_dim %arg5, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %25 = stablehlo.multiply %24, %20 : tensor<3xf32>
    %26 = stablehlo.add %23, %25 : tensor<3xf32>
    %27 = stablehlo.broadcast_in_dim %arg6, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %28 = stablehlo.add %12, %27 : tensor<3xf32>
    %29 = stablehlo.rsqrt %28 : tensor<3xf32>
    %30 = stablehlo.reshape %11 : (tensor<3xf32>) -> tensor<3x1x1xf32>
    %31 = stablehlo.broadcast_in_dim %30, dims = [1, 2, 3] : (tensor<3x1x1xf32>) -> tensor<1x3x1x1xf32>
    %32 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2, 3] : (tensor<1x3x1x1xf32>) -> tensor<2x3x4x4xf32>
    %33 = stablehlo.subtract %arg0, %32 : tensor<2x3x4x4xf32>
    %34 = stablehlo.reshape %29 : (tensor<3xf32>) -> tensor<3x1x1xf32>
    %35 = stablehlo.broadcast_in_dim %34, dims = [1, 2, 3] : (tensor<3x1x1xf32>) -> tensor<1x3x1x1xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2, 3] : (tensor<1x3x1x1xf32>) -> tensor<2x3x4x4xf32>
    %37 = stablehlo.multiply %33, %36 : tensor<2x3x4x4xf32>
    %38 = stablehlo.reshape %arg1 : (tensor<3xf32>) -> tensor<3x1x1xf32>
    %39 = stablehlo.reshape %arg2 : (tensor<3xf32>) -> tensor<3x1x1xf32>
    %40 = stablehlo.broadcast_in_dim %38, dims = [1, 2, 3] : (tensor<3x1x1xf32>) -> tensor<1x3x1x1xf32>
    %41 = stablehlo.broadcast_in_dim %40, dims = [0, 1, 2, 3] : (tensor<1x3x1x1xf32>) -> tensor<2x3x4x4xf32>
    %42 = stablehlo.multiply %37, %41 : tensor<2x3x4x4xf32>
    %43 = stablehlo.broadcast_in_dim %39, dims = [1, 2, 3] : (tensor<3x1x1xf32>) -> tensor<1x3x1x1xf32>
    %44 = stablehlo.broadcast_in_dim %43, dims = [0, 1, 2, 3] : (tensor<1x3x1x1xf32>) -> tensor<2x3x4x4xf32>
    %45 = stablehlo.add %42, %44 : tensor<2x3x4x4xf32>
    return %45, %11, %29, %18, %26 : tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  }
}
