module {
  func.func public @main(%arg0: tensor<4x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<f32>) -> (tensor<4x3xf32>) {
    %0 = stablehlo.slice %arg0 [1:3, 0:3] : (tensor<4x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<2x3xf32>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %c_0 = stablehlo.constant dense<0> : tensor<i64>
    %3 = stablehlo.dynamic_update_slice %arg0, %2, %c, %c_0 : (tensor<4x3xf32>, tensor<2x3xf32>, tensor<i64>, tensor<i64>) -> tensor<4x3xf32>
    %4 = stablehlo.reshape %3 : (tensor<4x3xf32>) -> tensor<12xf32>
    %5 = stablehlo.reshape %4 : (tensor<12xf32>) -> tensor<4x3xf32>
    return %5 : tensor<4x3xf32>
  }
}
