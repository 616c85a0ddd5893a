module {
  func.func public @main(%arg0: tensor<1x4x5x5xf32>, %arg1: tensor<4x3x3x3xf32>) -> (tensor<1x3x11x11xf32>) {
    %0 = stablehlo.reverse %arg1, dims = [2, 3] : tensor<4x3x3x3xf32>
    %1 = stablehlo.reshape %0 : (tensor<4x3x3x3xf32>) -> tensor<1x4x3x3x3xf32>
    %2 = stablehlo.transpose %1, dims = [0, 2, 1, 3, 4] : (tensor<1x4x3x3x3xf32>) -> tensor<1x3x4x3x3xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x3x4x3x3xf32>) -> tensor<3x4x3x3xf32>
    %4 = stablehlo.convolution(%arg0, %3) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[2, 2], [2, 2]], lhs_dilate = [2, 2], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} : (tensor<1x4x5x5xf32>, tensor<3x4x3x3xf32>) -> tensor<1x3x11x11xf32>
    return %4 : tensor<1x3x11x11xf32>
  }
}
