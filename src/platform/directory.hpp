// Directories that this process makes.
#pragma once

#include <sys/stat.h>

#include <string>

namespace once {

// Makes the directory under another name beside it first: once others can see it, its mode and owner are right, and
// they may use it. Its mode is `mode`, whatever the umask. What root makes gets the owner and group of `model`, which
// is for the same users. True if it is there, perhaps because another process made it meanwhile. False: see errno.
bool make_directory(const std::string& path, unsigned mode, const struct stat& model);

// The directory in which the name lies, which may end with slashes; "." if it has none.
std::string directory_of(const std::string& path);

}  // namespace once
