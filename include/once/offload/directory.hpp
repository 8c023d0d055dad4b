// Large results as files in a directory.
#pragma once

#include <memory>
#include <string>

#include <once/offload.hpp>

namespace once {

// Files in a directory, which is created (mode 0700) if missing; locations are "file:<name>", relative to the
// directory, so that it may be moved. Files are written beside, synced and renamed, so each is whole. A name is never
// used twice: 16 hexadecimal digits of the hint's digest, '-', 32 random ones; while it is written ".part" is added.
// Answers before the call returns. A full disk and the like: unavailable, and nothing is left behind. Throws
// Exception(unavailable) if the directory cannot be used.
std::shared_ptr<Offload> make_directory_offload(std::string directory);

}  // namespace once
