// Which file systems cannot hold a store: two hosts, or two mounts, may show one file there without sharing its locks
// or its mapped pages, so that two programs claim one key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace once::stores::sqlite {

// By statfs(2)'s f_type. Empty: any other, such as ext4, XFS, tmpfs, or overlay, on which containers live.
std::string_view shared_file_system(std::uint32_t magic) noexcept;
// Of the file, or of its nearest directory that exists. Empty also if that cannot be known.
std::string_view shared_file_system_of(const std::string& path) noexcept;

// Throws Exception(misuse), which names the file system and the option to insist.
void refuse_shared_file_system(const std::string& path);

}  // namespace once::stores::sqlite
