// A disk in memory for SQLite, which all processes of a world share, and which fails and loses its power.
//
// For each file it keeps what programs see, and the platter: what the disk itself has. Syncs and power cuts treat both
// as tests/sqlite/shadow_disk.hpp does, which says how disks fail. Here they do it without files, processes and
// threads, so that a world repeats itself. A file's name is on the disk when the file is synced first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "world.hpp"

namespace once::simulation {

class Disk {
 public:
  // One at a time. Also seeds SQLite's own random numbers.
  explicit Disk(World& world);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  [[nodiscard]] static std::string vfs();  // For SqliteOptions::vfs.

  // A process. When it is dead, whatever it does to a file changes nothing, and fails.
  struct Program {
    bool is_dead = false;
  };
  using ProgramPtr = std::shared_ptr<Program>;
  // The files that are opened while this lives are this process's.
  class As {
   public:
    As(Disk& disk, ProgramPtr program) : disk_(disk), before_(std::exchange(disk.runs_, std::move(program))) {}
    ~As() { disk_.runs_ = std::move(before_); }
    As(const As&) = delete;
    As& operator=(const As&) = delete;

   private:
    Disk& disk_;
    ProgramPtr before_;
  };

  enum class Trouble : std::uint8_t {
    none,
    full,             // ENOSPC, of every write until the trouble ends.
    log_write_fails,  // EIO, when some of it is written.
    log_sync_fails,   // EIO.
    reads_fail,       // EIO, of every read until the trouble ends.
    killed,           // The process, before, within or after a write or a sync.
    power_fails,      // And all others with it.
  };
  // Meets the programs after `skip` writes and syncs that it could have met. `none`: no more.
  void trouble(Trouble what, std::uint64_t skip = 0) {
    trouble_ = what;
    skip_ = skip;
  }
  // How many syncs of the database itself fail, in a thousand, and of its writes a twentieth of that: EIO.
  void file_trouble(std::uint32_t in_a_thousand) noexcept { file_trouble_ = in_a_thousand; }
  // Planted bugs.
  enum class Lie : std::uint8_t {
    none,
    log_is_synced_late,  // At its next write.
    log_is_never_synced,
    file_is_never_synced,
    failed_syncs_worked,
    log_loses_pages,  // Some of what is written to it.
  };
  void lie(Lie lie) noexcept { lie_ = lie; }
  void reverts(bool reverts) noexcept { reverts_ = reverts; }  // After a failed sync programs see the platter.

  void on_death(std::function<void()> what) { on_death_ = std::move(what); }
  void cut_power();  // All programs are dead.
  [[nodiscard]] bool has_power() const noexcept { return has_power_; }
  void boot();  // Programs find what the power cut has left. No file is open.

 private:
  friend struct Methods;
  struct Open;

  struct Content {
    std::string seen;
    std::string platter;
    std::set<std::size_t> dirty;         // Pages.
    std::optional<std::size_t> cut_off;  // To which size, of which the platter does not know yet.
    bool has_name = false;               // On the platter.
    bool syncs_late = false;

    // Locks: of the file, and of the index of a log.
    std::map<const Open*, int> locks;
    std::map<const Open*, unsigned> shared, exclusive;  // Bits of the slots.
    std::vector<std::unique_ptr<char[]>> index;
    std::set<const Open*> maps;
  };
  using ContentPtr = std::shared_ptr<Content>;

  bool comes(Trouble what);
  bool ends(Program& program);
  void fall(Program& program);
  int write(Open& file, const char* data, std::size_t size, std::size_t at);
  int sync(Open& file);
  int truncate(Open& file, std::size_t size);
  int failed_sync(Content& content);
  void put(Content& content, const char* data, std::size_t size, std::size_t at);
  void sync_whole(Content& content);
  void bring(Content& content, std::size_t page, bool all_sectors);
  static bool may_have(const Content& content, std::size_t page);
  static void cut_off(Content& content);

  World& world_;
  std::map<std::string, ContentPtr> files_;
  ProgramPtr runs_;
  Trouble trouble_ = Trouble::none;
  std::uint64_t skip_ = 0;
  std::uint32_t file_trouble_ = 0;
  Lie lie_ = Lie::none;
  bool reverts_ = false;
  bool has_power_ = true;
  std::function<void()> on_death_;
};

}  // namespace once::simulation
