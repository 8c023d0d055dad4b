// Results that are kept compressed: zstd (RFC 8878). The engine compresses and expands; this is for programs that read
// records from a store themselves.
#pragma once

#include <cstddef>
#include <optional>

#include <once/error.hpp>
#include <once/result.hpp>

namespace once {

// Larger results are not compressed. So a record cannot make its reader fill more memory than that.
inline constexpr std::size_t max_compressible_bytes = std::size_t{64} * 1024 * 1024;

// An inlined result with its bytes compressed (Placement::compressed). Empty if that makes them not at least a tenth
// smaller, or leaves more than `most_bytes`.
std::optional<Result> compressed(const Result& result, std::size_t most_bytes);

// Makes a compressed result an inlined one, and leaves every other unchanged. The error is corrupt: the stored bytes
// are not those that were written. Then the result is as before.
std::optional<Error> expand(Result& result);

}  // namespace once
