// Made by tests/seal/golden.py.
#pragma once

namespace once::testing {

inline constexpr const char* golden_bytes =
    "323a6b312c32383a54399ded9387ac624754a89d43b8a84861eebdb21d7bb89a078fe29b2ca93e2a5a05ee8607799eaac982"
    "ef17e0decdea3b008ae7d60136027aec9b2715e6d76bb5bfcabe123858096987da45b14ade42f79977fcf6418320d564110c"
    "fd37c94361cc8c670c3692b3641cb92307e08fa6d21242d447b8989dd555aa21c0d2e5b78465601c05daab7ca2cde36190fc"
    "33daf328e85ef04964df040d011d8f8cdae44107957b947683a281e7b0a7146a94e0";
inline constexpr const char* golden_label = "b4e65e0ee403263535bde3fd44bd3f30";

}  // namespace once::testing
