// Where results go that are too large for a record.
#pragma once

#include <memory>
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

// Files in a directory, which is made (mode 0700) if missing; locations are "file:<name>", relative to the directory,
// so that it may be moved. Written beside, synced and renamed. Throws Exception(unavailable) if the directory cannot be
// used.
std::shared_ptr<Offload> make_directory_offload(std::string directory);

}  // namespace once
