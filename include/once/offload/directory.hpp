// Large results as files in a directory.
#pragma once

#include <memory>
#include <string>

#include <once/offload.hpp>

namespace once {

// Keeps files in a directory, which is created (mode 0700) if missing. Locations are "file:<name>", relative to the
// directory, so it may be moved. Each file is written under another name, synced and renamed, so it is always whole. A
// name is never used twice: 16 hexadecimal digits of the hint's digest, '-', 32 random ones, and ".part" while it is
// written. Completes before the call returns. A failed write, for example a full disk, is unavailable and leaves
// nothing behind. Throws Exception(unavailable) if the directory cannot be used.
std::shared_ptr<Offload> make_directory_offload(std::string directory);

}  // namespace once
