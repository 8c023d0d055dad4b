// Where results go that are too large for a record: the port. Directories are in once/offload/directory.hpp, S3 is in
// once/offload/s3.hpp, and open_offload() in once/stores/open.hpp takes either as a URL.
#pragma once

#include <optional>
#include <string>

#include <once/callback.hpp>
#include <once/error.hpp>

namespace once {

// What a put or get gave: `text` is the location (put) or the bytes (get).
struct OffloadAnswer {
  std::string text;
  std::optional<Error> error;
};

// Thread-safe. Each call completes exactly once, before it returns or later; see Store for the rules of completions.
class Offload {
 public:
  virtual ~Offload() = default;
  // Keeps the bytes durably under a new location. `hint` is a name that tells an operator what it belongs to.
  virtual void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) = 0;
  // The bytes at a location that put gave. Missing: corrupt.
  virtual void get(std::string location, Callback<void(OffloadAnswer)> done) = 0;
  // Removes them. Missing is not an error.
  virtual void remove(std::string location, Callback<void(OffloadAnswer)> done) = 0;
};

}  // namespace once
