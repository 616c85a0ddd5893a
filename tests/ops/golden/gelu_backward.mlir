module {
  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (tensor<4xf32>) {
    %cst = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.multiply %0, %arg1 : tensor<4xf32>
    %2 = stablehlo.multiply %1, %arg1 : tensor<4xf32>
    %3 = stablehlo.multiply %2, %arg1 : tensor<4xf32>
    %4 = stablehlo.add %arg1, %3 : tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %6 = stablehlo.multiply %5, %4 : tensor<4xf32>
    %7 = stablehlo.tanh %6 : tensor<4xf32>
    %cst_1 = stablehlo.constant dense<1.341450e-01> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %9 = stablehlo.multiply %8, %arg1 : tensor<4xf32>
    %10 = stablehlo.multiply %9, %arg1 : tensor<4xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %12 = stablehlo.add %11, %10 : tensor<4xf32>
    %cst_3 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %14 = stablehlo.multiply %13, %12 : tensor<4xf32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %16 = stablehlo.add %15, %7 : tensor<4xf32>
    %cst_5 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %18 = stablehlo.multiply %17, %16 : tensor<4xf32>
    %cst_6 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %20 = stablehlo.multiply %19, %arg1 : tensor<4xf32>
    %21 = stablehlo.multiply %7, %7 : tensor<4xf32>
    %cst_7 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %23 = stablehlo.subtract %22, %21 : tensor<4xf32>
    %24 = stablehlo.multiply %20, %23 : tensor<4xf32>
    %25 = stablehlo.multiply %24, %14 : tensor<4xf32>
    %26 = stablehlo.add %18, %25 : tensor<4xf32>
    %27 = stablehlo.multiply %arg0, %26 : tensor<4xf32>
    return %27 : tensor<4xf32>
  }
}
