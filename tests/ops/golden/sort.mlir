module {
  func.func public @main(%arg0: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xi64>) {
    %0 = stablehlo.iota dim = 0 : tensor<4x6xi32>
    %1 = call @_flip(%arg0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %2 = call @_flip_0(%0) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %3:2 = "stablehlo.sort"(%1, %2) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>, %arg3: tensor<i32>, %arg4: tensor<i32>):
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %7 = stablehlo.compare EQ, %arg1, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %8 = stablehlo.select %7, %cst_0, %arg1 : tensor<i1>, tensor<f32>
      %9 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %10 = stablehlo.select %9, %cst_1, %8 : tensor<i1>, tensor<f32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %11 = stablehlo.compare EQ, %arg2, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %12 = stablehlo.select %11, %cst_3, %arg2 : tensor<i1>, tensor<f32>
      %13 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %14 = stablehlo.select %13, %cst_4, %12 : tensor<i1>, tensor<f32>
      %15 = stablehlo.compare LT, %10, %14, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %15 : tensor<i1>
    }) : (tensor<4x6xf32>, tensor<4x6xi32>) -> (tensor<4x6xf32>, tensor<4x6xi32>)
    %4 = call @_flip(%3#0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    %5 = call @_flip_0(%3#1) : (tensor<4x6xi32>) -> tensor<4x6xi32>
    %6 = stablehlo.convert %5 : (tensor<4x6xi32>) -> tensor<4x6xi64>
    return %4, %6 : tensor<4x6xf32>, tensor<4x6xi64>
  }
  func.func private @_flip(%arg0: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.reverse %arg0, dims = [0] : tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
  func.func private @_flip_0(%arg0: tensor<4x6xi32>) -> tensor<4x6xi32> {
    %0 = stablehlo.reverse %arg0, dims = [0] : tensor<4x6xi32>
    return %0 : tensor<4x6xi32>
  }
}
