#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <once/fingerprint.hpp>
#include <once/offload/directory.hpp>
#include <once/platform/system.hpp>

#include "platform/directory.hpp"
#include "platform/file.hpp"

namespace once {

namespace {

constexpr std::string_view scheme = "file:";

class DirectoryOffload final : public Offload {
 public:
  explicit DirectoryOffload(std::string directory) : directory_(std::move(directory)) {
    struct stat found {};
    if (stat(directory_.c_str(), &found) != 0) {
      const bool made = errno == ENOENT && stat(directory_of(directory_).c_str(), &found) == 0 &&
                        make_directory(directory_, 0700, found);
      if (!made) throw Exception(failure("make", directory_));
    }
    if (access(directory_.c_str(), R_OK | X_OK) != 0) throw Exception(failure("read", directory_));
  }

  // The name is random: two attempts at one operation must not write the same file. Its first digits are the key's
  // digest.
  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    std::array<std::uint8_t, 16> random{};
    system_random()->fill(random);
    const std::string name = to_hex(sha256(hint)).substr(0, 16) + "-" +
                             to_hex({reinterpret_cast<const char*>(random.data()), random.size()});
    const std::string path = directory_ + "/" + name;
    const std::string beside = path + ".part";
    done(write(beside, path, bytes) ? OffloadAnswer{std::string(scheme) + name, {}}
                                    : remove_part(beside, failure("write", path)));
  }

  void get(std::string location, Callback<void(OffloadAnswer)> done) override {
    std::string path;
    if (!path_of(location, path)) return done(foreign(location));
    std::string bytes;
    const int error = read_file(path, bytes.max_size(), bytes);
    if (error == ENOENT) {
      return done({{}, Error{ErrorKind::corrupt, "the result was kept in " + path + ", which no longer exists"}});
    }
    if (error != 0) return done({{}, failure("read", path, error)});
    done({std::move(bytes), {}});
  }

  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    std::string path;
    if (!path_of(location, path)) return done(foreign(location));
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return done({{}, failure("remove", path)});
    done({});
  }

 private:
  static Error failure(std::string_view what, const std::string& path, int error = errno) {
    return {ErrorKind::unavailable, "cannot " + std::string(what) + " " + path + ": " + std::strerror(error) +
                                        (error == EFBIG ? file_size_limit_text() : std::string())};
  }

  static OffloadAnswer foreign(const std::string& location) {
    return {
        {},
        Error{ErrorKind::misuse, "'" + location + "' is not a location of a directory offload: expected file:<name>"}};
  }

  static OffloadAnswer remove_part(const std::string& beside, Error error) {
    unlink(beside.c_str());
    return {{}, std::move(error)};
  }

  // Only names: others may write the store, and a location must not lead out of the directory.
  bool path_of(const std::string& location, std::string& path) const {
    if (!std::string_view(location).starts_with(scheme)) return false;
    const std::string name = location.substr(scheme.size());
    if (name.empty() || name.find_first_not_of("0123456789abcdef-") != std::string::npos) return false;
    path = directory_ + "/" + name;
    return true;
  }

  // False: see errno. True: the file and its name are durable.
  bool write(const std::string& beside, const std::string& path, std::string_view bytes) const {
    const NoFileSizeSignal no_signal;
    {
      const Fd file(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      struct stat model {};
      if (!file || stat(directory_.c_str(), &model) != 0 || !set_mode_and_owner(file.get(), 0600, model)) return false;
      while (!bytes.empty()) {
        const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(count));
      }
      if (fdatasync(file.get()) != 0) return false;
    }
    if (rename(beside.c_str(), path.c_str()) != 0) return false;
    const Fd directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return directory && fsync(directory.get()) == 0;
  }

  const std::string directory_;
};

}  // namespace

std::shared_ptr<Offload> make_directory_offload(std::string directory) {
  return std::make_shared<DirectoryOffload>(std::move(directory));
}

}  // namespace once
