// Made by tests/seal/golden.py.
#pragma once

namespace once::testing {

inline constexpr const char* golden_bytes =
    "323a6b312c32383a51caac096fdfc5ca9603094e2c3b058f06f5a60da7bf3f247a4d35482c6e69bc284b800bcb6476ad4d1b"
    "e3cd744896524dd9cefef016556767afcca5987dd25c6a3f128afaec7c748f9073b1ee68418f6464f115d41907073844defb"
    "ba3b9d7f333ccfbfac083c928624200f937e7e65d1d8b2a667ab374c2038e9dd157f6c74425cfeec2fe6fb1bc3918ead2dff"
    "a5588ec350fe64e6f07675e8e268cd6d2fae0140e11ea8132fe6876caea89ccfcdc7";
inline constexpr const char* golden_label = "b4e65e0ee403263535bde3fd44bd3f30";

}  // namespace once::testing
