// The port for results that are too large for a record. once/offload/directory.hpp and once/offload/s3.hpp implement
// it. open_offload() in once/stores/open.hpp opens either by URL.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/result.hpp>

namespace once {

// The answer of put(), get() or remove().
struct OffloadAnswer {
  std::string text = {};            // put: the location. get: the bytes. remove, or with an error: not used.
  std::optional<Error> error = {};  // Empty: it is done.
};

// Thread-safe. Each call completes exactly once, before it returns or later. Store has the rules for completions.
class Offload {
 public:
  virtual ~Offload() = default;
  // Keeps the bytes durably under a new location. `hint`: a name that shows operators what they belong to.
  virtual void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) = 0;
  // The bytes at a location that put() returned. Missing bytes are error corrupt. Call check_offloaded() on them.
  virtual void get(std::string location, Callback<void(OffloadAnswer)> done) = 0;
  // Removes them. Missing bytes are not an error.
  virtual void remove(std::string location, Callback<void(OffloadAnswer)> done) = 0;
  // Whether it encrypts what it puts: see once/seal.hpp.
  [[nodiscard]] virtual bool seals() const noexcept { return false; }
};

// Whether these are the bytes of an offloaded result: by its size and digest. Otherwise the error, of kind corrupt.
std::optional<Error> check_offloaded(const Result& result, std::string_view bytes);

}  // namespace once
