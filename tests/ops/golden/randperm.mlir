module {
  func.func public @main(%arg0: tensor<4xui32>) -> (tensor<8xi64>) {
    %0 = stablehlo.reshape %arg0 : (tensor<4xui32>) -> tensor<2x2xui32>
    %1 = stablehlo.bitcast_convert %0 : (tensor<2x2xui32>) -> tensor<2xui64>
    %output_state, %output = stablehlo.rng_bit_generator %1, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8xui64>)
    %2 = stablehlo.bitcast_convert %output_state : (tensor<2xui64>) -> tensor<2x2xui32>
    %3 = stablehlo.reshape %2 : (tensor<2x2xui32>) -> tensor<4xui32>
    %4 = stablehlo.iota dim = 0 : tensor<8xi32>
    %5:2 = "stablehlo.sort"(%output, %4) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<ui64>, %arg2: tensor<ui64>, %arg3: tensor<i32>, %arg4: tensor<i32>):
      %7 = stablehlo.compare LT, %arg1, %arg2, UNSIGNED : (tensor<ui64>, tensor<ui64>) -> tensor<i1>
      stablehlo.return %7 : tensor<i1>
    }) : (tensor<8xui64>, tensor<8xi32>) -> (tensor<8xui64>, tensor<8xi32>)
    %6 = stablehlo.convert %5#1 : (tensor<8xi32>) -> tensor<8xi64>
    return %6 : tensor<8xi64>
  }
}
