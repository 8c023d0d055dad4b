#include <once/engine/compression.hpp>

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace once {

namespace {

constexpr int compression_level = 1;  // The fastest, because the caller of a finish waits for it.

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
};

}  // namespace

std::optional<Result> compressed(const Result& result, std::size_t most_bytes) {
  const std::string& bytes = result.bytes;
  if (bytes.size() > max_compressible_bytes) return std::nullopt;
  // Making a context costs more than using it.
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  if (context == nullptr) return std::nullopt;
  std::string smaller(std::min(bytes.size() - bytes.size() / 10, most_bytes), '\0');
  const std::size_t size =
      ZSTD_compressCCtx(context.get(), smaller.data(), smaller.size(), bytes.data(), bytes.size(), compression_level);
  if (ZSTD_isError(size) != 0) return std::nullopt;  // No room: it is not small enough.
  smaller.resize(size);
  smaller.shrink_to_fit();
  Result out;
  out.bytes = std::move(smaller);
  out.content_type = result.content_type;
  out.placement = Placement::compressed;
  out.size = bytes.size();
  out.digest = sha256(bytes);
  return out;
}

std::optional<Error> expand(Result& result) {
  if (result.placement != Placement::compressed) return std::nullopt;
  const auto corrupt = [&](const std::string& why) {
    return Error{ErrorKind::corrupt, "the compressed result in the record is not the one that was kept: " + why};
  };
  if (result.size > max_compressible_bytes) {
    return corrupt("it claims " + std::to_string(result.size) + " bytes, and there are at most " +
                   std::to_string(max_compressible_bytes));
  }
  // Checked before memory is allocated.
  if (ZSTD_getFrameContentSize(result.bytes.data(), result.bytes.size()) != result.size) {
    return corrupt("it does not hold " + std::to_string(result.size) + " bytes of zstd");
  }
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (context == nullptr) return Error{ErrorKind::unavailable, "not enough memory to decompress a result"};
  std::string bytes(result.size, '\0');
  const std::size_t size =
      ZSTD_decompressDCtx(context.get(), bytes.data(), bytes.size(), result.bytes.data(), result.bytes.size());
  if (ZSTD_isError(size) != 0) return corrupt(ZSTD_getErrorName(size));
  if (size != bytes.size() || sha256(bytes) != result.digest) return corrupt("it gives other bytes");
  result = Result::inlined(std::move(bytes), std::move(result.content_type));
  return std::nullopt;
}

}  // namespace once
