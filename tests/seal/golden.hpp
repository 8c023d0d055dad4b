// Made by tests/seal/golden.py.
#pragma once

namespace once::testing {

inline constexpr const char* golden_bytes =
    "323a6b312c32383a591e905ebd8c6c4fe08be326c89898475c9425ea2ef3480ac8ccb2f72c8b345fb6c21ac07d08598d5419"
    "e39f0f5ea0021ed3277effe8cbe1f4d37460ad412f75f21bf446a3f5ddd6457234768e091f5b7e231cc7358f1d3d1a80b812"
    "f505f3ba40d2c446e75b6240103408abc0a4cd53708daeb7f6c1324b48bd16963248908989e695c158f0832683bea730a584"
    "d3389ea9b753e438a44fc1b2d0e9878908ffbe85d8f86faf14238517a342fa5d6f67";
inline constexpr const char* golden_label = "b4e65e0ee403263535bde3fd44bd3f30";

}  // namespace once::testing
