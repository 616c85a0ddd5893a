module {
  func.func public @main(%arg0: tensor<i64>, %arg1: tensor<i64>, %arg2: tensor<4xui32>) -> (tensor<4xi64>) {
    %c = stablehlo.constant dense<0> : tensor<i64>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<4xi64>
    %1 = stablehlo.convert %arg1 : (tensor<i64>) -> tensor<ui64>
    %2 = stablehlo.convert %arg0 : (tensor<i64>) -> tensor<ui64>
    %3 = stablehlo.subtract %1, %2 : tensor<ui64>
    %4 = stablehlo.reshape %arg2 : (tensor<4xui32>) -> tensor<2x2xui32>
    %5 = stablehlo.bitcast_convert %4 : (tensor<2x2xui32>) -> tensor<2xui64>
    %output_state, %output = stablehlo.rng_bit_generator %5, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui64>)
    %6 = stablehlo.bitcast_convert %output_state : (tensor<2xui64>) -> tensor<2x2xui32>
    %7 = stablehlo.reshape %6 : (tensor<2x2xui32>) -> tensor<4xui32>
    %c_0 = stablehlo.constant dense<0> : tensor<ui64>
    %8 = stablehlo.compare EQ, %3, %c_0, UNSIGNED : (tensor<ui64>, tensor<ui64>) -> tensor<i1>
    %c_1 = stablehlo.constant dense<32> : tensor<ui64>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %10 = stablehlo.shift_right_logical %output, %9 : tensor<4xui64>
    %c_2 = stablehlo.constant dense<4294967295> : tensor<ui64>
    %11 = stablehlo.and %3, %c_2 : tensor<ui64>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %13 = stablehlo.multiply %10, %12 : tensor<4xui64>
    %c_3 = stablehlo.constant dense<4294967295> : tensor<ui64>
    %14 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %15 = stablehlo.and %output, %14 : tensor<4xui64>
    %c_4 = stablehlo.constant dense<4294967295> : tensor<ui64>
    %16 = stablehlo.and %3, %c_4 : tensor<ui64>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %18 = stablehlo.multiply %15, %17 : tensor<4xui64>
    %c_5 = stablehlo.constant dense<32> : tensor<ui64>
    %19 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %20 = stablehlo.shift_right_logical %18, %19 : tensor<4xui64>
    %21 = stablehlo.add %13, %20 : tensor<4xui64>
    %c_6 = stablehlo.constant dense<32> : tensor<ui64>
    %22 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %23 = stablehlo.shift_right_logical %output, %22 : tensor<4xui64>
    %c_7 = stablehlo.constant dense<32> : tensor<ui64>
    %24 = stablehlo.shift_right_logical %3, %c_7 : tensor<ui64>
    %25 = stablehlo.broadcast_in_dim %24, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %26 = stablehlo.multiply %23, %25 : tensor<4xui64>
    %c_8 = stablehlo.constant dense<32> : tensor<ui64>
    %27 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %28 = stablehlo.shift_right_logical %21, %27 : tensor<4xui64>
    %29 = stablehlo.add %26, %28 : tensor<4xui64>
    %c_9 = stablehlo.constant dense<4294967295> : tensor<ui64>
    %30 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %31 = stablehlo.and %output, %30 : tensor<4xui64>
    %c_10 = stablehlo.constant dense<32> : tensor<ui64>
    %32 = stablehlo.shift_right_logical %3, %c_10 : tensor<ui64>
    %33 = stablehlo.broadcast_in_dim %32, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %34 = stablehlo.multiply %31, %33 : tensor<4xui64>
    %c_11 = stablehlo.constant dense<4294967295> : tensor<ui64>
    %35 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %36 = stablehlo.and %21, %35 : tensor<4xui64>
    %37 = stablehlo.add %34, %36 : tensor<4xui64>
    %c_12 = stablehlo.constant dense<32> : tensor<ui64>
    %38 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<ui64>) -> tensor<4xui64>
    %39 = stablehlo.shift_right_logical %37, %38 : tensor<4xui64>
    %40 = stablehlo.add %29, %39 : tensor<4xui64>
    %41 = call @_where(%8, %output, %40) : (tensor<i1>, tensor<4xui64>, tensor<4xui64>) -> tensor<4xui64>
    %42 = stablehlo.bitcast_convert %41 : (tensor<4xui64>) -> tensor<4xi64>
    %43 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<i64>) -> tensor<4xi64>
    %44 = stablehlo.add %42, %43 : tensor<4xi64>
    %c_13 = stablehlo.constant dense<0> : tensor<i64>
    %45 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<i64>) -> tensor<4xi64>
    return %44 : tensor<4xi64>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<4xui64>, %arg2: tensor<4xui64>) -> tensor<4xui64> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<4xui64>
    return %0 : tensor<4xui64>
  }
}
