module {
  func.func public @main(%arg0: tensor<1x2x8x8xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4x4xi64>) {
    %0 = stablehlo.iota dim = 0 : tensor<64xi32>
    %1 = stablehlo.reshape %0 : (tensor<64xi32>) -> tensor<8x8xi32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [2, 3] : (tensor<8x8xi32>) -> tensor<1x2x8x8xi32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %3 = stablehlo.pad %arg0, %cst, low = [0, 0, 0, 1], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<1x2x8x8xf32>, tensor<f32>) -> tensor<1x2x8x9xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4 = stablehlo.pad %2, %c, low = [0, 0, 0, 1], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<1x2x8x8xi32>, tensor<i32>) -> tensor<1x2x8x9xi32>
    %5 = stablehlo.slice %3 [0:1, 0:2, 0:8, 0:7:2] : (tensor<1x2x8x9xf32>) -> tensor<1x2x8x4xf32>
    %6 = stablehlo.slice %4 [0:1, 0:2, 0:8, 0:7:2] : (tensor<1x2x8x9xi32>) -> tensor<1x2x8x4xi32>
    %7 = stablehlo.slice %3 [0:1, 0:2, 0:8, 1:8:2] : (tensor<1x2x8x9xf32>) -> tensor<1x2x8x4xf32>
    %8 = stablehlo.slice %4 [0:1, 0:2, 0:8, 1:8:2] : (tensor<1x2x8x9xi32>) -> tensor<1x2x8x4xi32>
    %9 = stablehlo.compare GT, %7, %5, FLOAT : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xi1>
    %10 = stablehlo.compare NE, %7, %7, FLOAT : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xi1>
    %11 = stablehlo.or %9, %10 : tensor<1x2x8x4xi1>
    %12 = call @_where(%11, %7, %5) : (tensor<1x2x8x4xi1>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xf32>
    %13 = call @_where_0(%11, %8, %6) : (tensor<1x2x8x4xi1>, tensor<1x2x8x4xi32>, tensor<1x2x8x4xi32>) -> tensor<1x2x8x4xi32>
    %14 = stablehlo.slice %3 [0:1, 0:2, 0:8, 2:9:2] : (tensor<1x2x8x9xf32>) -> tensor<1x2x8x4xf32>
    %15 = stablehlo.slice %4 [0:1, 0:2, 0:8, 2:9:2] : (tensor<1x2x8x9xi32>) -> tensor<1x2x8x4xi32>
    %16 = stablehlo.compare GT, %14, %12, FLOAT : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xi1>
    %17 = stablehlo.compare NE, %14, %14, FLOAT : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xi1>
    %18 = stablehlo.or %16, %17 : tensor<1x2x8x4xi1>
    %19 = call @_where(%18, %14, %12) : (tensor<1x2x8x4xi1>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xf32>
    %20 = call @_where_0(%18, %15, %13) : (tensor<1x2x8x4xi1>, tensor<1x2x8x4xi32>, tensor<1x2x8x4xi32>) -> tensor<1x2x8x4xi32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %21 = stablehlo.pad %19, %cst_0, low = [0, 0, 1, 0], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<1x2x8x4xf32>, tensor<f32>) -> tensor<1x2x9x4xf32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %22 = stablehlo.pad %20, %c_1, low = [0, 0, 1, 0], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<1x2x8x4xi32>, tensor<i32>) -> tensor<1x2x9x4xi32>
    %23 = stablehlo.slice %21 [0:1, 0:2, 0:7:2, 0:4] : (tensor<1x2x9x4xf32>) -> tensor<1x2x4x4xf32>
    %24 = stablehlo.slice %22 [0:1, 0:2, 0:7:2, 0:4] : (tensor<1x2x9x4xi32>) -> tensor<1x2x4x4xi32>
    %25 = stablehlo.slice %21 [0:1, 0:2, 1:8:2, 0:4] : (tensor<1x2x9x4xf32>) -> tensor<1x2x4x4xf32>
    %26 = stablehlo.slice %22 [0:1, 0:2, 1:8:2, 0:4] : (tensor<1x2x9x4xi32>) -> tensor<1x2x4x4xi32>
    %27 = stablehlo.compare GT, %25, %23, FLOAT : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xi1>
    %28 = stablehlo.compare NE, %25, %25, FLOAT : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xi1>
    %29 = stablehlo.or %27, %28 : tensor<1x2x4x4xi1>
    %30 = call @_where_1(%29, %25, %23) : (tensor<1x2x4x4xi1>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
    %31 = call @_where_2(%29, %26, %24) : (tensor<1x2x4x4xi1>, tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xi32>
    %32 = stablehlo.slice %21 [0:1, 0:2, 2:9:2, 0:4] : (tensor<1x2x9x4xf32>) -> tensor<1x2x4x4xf32>
    %33 = stablehlo.slice %22 [0:1, 0:2, 2:9:2, 0:4] : (tensor<1x2x9x4xi32>) -> tensor<1x2x4x4xi32>
    %34 = stablehlo.compare GT, %32, %30, FLOAT : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xi1>
    %35 = stablehlo.compare NE, %32, %32, FLOAT : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xi1>
    %36 = stablehlo.or %34, %35 : tensor<1x2x4x4xi1>
    %37 = call @_where_1(%36, %32, %30) : (tensor<1x2x4x4xi1>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
    %38 = call @_where_2(%36, %33, %31) : (tensor<1x2x4x4xi1>, tensor<1x2x4x4xi32>, tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xi32>
    %39 = stablehlo.convert %38 : (tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xi64>
    return %37, %39 : tensor<1x2x4x4xf32>, tensor<1x2x4x4xi64>
  }
  func.func private @_where(%arg0: tensor<1x2x8x4xi1>, %arg1: tensor<1x2x8x4xf32>, %arg2: tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<1x2x8x4xi1>, tensor<1x2x8x4xf32>
    return %0 : tensor<1x2x8x4xf32>
  }
  func.func private @_where_0(%arg0: tensor<1x2x8x4xi1>, %arg1: tensor<1x2x8x4xi32>, %arg2: tensor<1x2x8x4xi32>) -> tensor<1x2x8x4xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<1x2x8x4xi1>, tensor<1x2x8x4xi32>
    return %0 : tensor<1x2x8x4xi32>
  }
  func.func private @_where_1(%arg0: tensor<1x2x4x4xi1>, %arg1: tensor<1x2x4x4xf32>, %arg2: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<1x2x4x4xi1>, tensor<1x2x4x4xf32>
    return %0 : tensor<1x2x4x4xf32>
  }
  func.func private @_where_2(%arg0: tensor<1x2x4x4xi1>, %arg1: tensor<1x2x4x4xi32>, %arg2: tensor<1x2x4x4xi32>) -> tensor<1x2x4x4xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<1x2x4x4xi1>, tensor<1x2x4x4xi32>
    return %0 : tensor<1x2x4x4xi32>
  }
}
