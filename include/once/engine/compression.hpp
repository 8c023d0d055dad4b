// Results compressed with zstd (RFC 8878). The engine compresses and expands them. Use this in programs that read
// records from a store themselves.
#pragma once

#include <cstddef>
#include <optional>

#include <once/error.hpp>
#include <once/result.hpp>

namespace once {

// Larger results are not compressed, so a record cannot make its reader allocate more than this.
inline constexpr std::size_t max_compressible_bytes = std::size_t{64} * 1024 * 1024;

// An inlined result with its bytes compressed (Placement::compressed). Empty if that saves less than a tenth, or leaves
// more than `most_bytes`.
std::optional<Result> compressed(const Result& result, std::size_t most_bytes);

// Makes a compressed result an inlined one; leaves all others unchanged. Error corrupt: the stored bytes are not those
// that were written. Then the result is unchanged.
std::optional<Error> expand(Result& result);

}  // namespace once
