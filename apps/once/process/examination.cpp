#include "process/examination.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <once/decide.hpp>
#include <once/gate.hpp>
#include <once/offload.hpp>
#include <once/operate.hpp>
#include <once/platform/blocking.hpp>
#include <once/platform/system.hpp>
#include <once/seal.hpp>
#include <once/stores/sqlite.hpp>
#include <once/stores/table_finding.hpp>
#if ONCE_AWS
#include <once/aws/credentials.hpp>
#include <once/stores/dynamodb_table.hpp>
#endif

#if ONCE_POSTGRESQL
#include <once/stores/postgresql_schema.hpp>
#endif

#include "import/fallback.hpp"
#include "operators/free_space.hpp"
#include "operators/store_metrics.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "platform/host_boot.hpp"
#include "platform/wait.hpp"
#include "text/rfc3339.hpp"
#if ONCE_AWS
#include "stores/open_aws.hpp"
#endif
#if ONCE_POSTGRESQL
#include "stores/open_postgresql.hpp"
#endif
#include "stores/url.hpp"

namespace once::cli {

namespace {

enum class Grade : std::uint8_t { fine, note, problem };

std::string_view word(Grade grade) { return std::array{"fine", "note", "problem"}.at(static_cast<std::size_t>(grade)); }

struct Finding {
  Grade grade;
  std::string name;
  std::string text;  // What was found, and what to do next.
};

class Examination {
 public:
  explicit Examination(const DoctorOptions& options) : options_(options) {}

  int run() {
    try {
      access_ = open_access(options_.store, options_.probe ? Missing::refuse : Missing::read, IfFallback::ignore);
    } catch (const Exception& error) {
      add(Grade::problem, "open", error.what());
      look_at_space_of_unopened();
      look_at_fallback();  // Before the first claim there is no file, and this is when people look at the old table.
      return report(exit_code_of(error.kind()));
    }
    const Capabilities can = access_.store->capabilities();
    add(Grade::fine, "open",
        access_.store->name() + (can.durable ? ", durable" : ", not durable") +
            (can.shared ? ", shared by all processes" : ", of this process only") + ", records of up to " +
            show_size(can.max_record_bytes));
    if (!can.durable) {
      add(Grade::note, "durable", "in memory: exit loses every record, and other processes do not see them");
    }
    look_at_file();
#if ONCE_AWS
    look_at_table();
#endif
    if (stores::Url(access_.url).has("moves_to")) {
      add(Grade::note, "moves_to",
          "this is about " + access_.store->name() +
              ", which is in use. For all that can be said of a store, look at each URL alone");
#if ONCE_POSTGRESQL
    } else {
      look_at_schema();
#endif
    }
    look_at_gate();
    look_at_clock();
    look_at_offload();
    look_at_fallback();
    if (options_.probe) probe();
    const int counted = count();
    return report(counted != exit_ok ? counted : found_problem_ ? exit_found_problems : exit_ok);
  }

 private:
  void add(Grade grade, std::string name, std::string text) {
    if (grade == Grade::problem) found_problem_ = true;
    findings_.push_back({grade, std::move(name), std::move(text)});
  }

  void add_found(const stores::TableFinding& finding) {
    using Found = stores::TableFinding::Grade;
    add(finding.grade == Found::fine   ? Grade::fine
        : finding.grade == Found::hint ? Grade::note
                                       : Grade::problem,
        finding.name, finding.text);
  }

  // Forbidden names, such as a mount of the file alone, were refused when it was opened.
  void look_at_names(const stores::SqliteStatus& status) {
    if (status.hard_links > 1) {
      add(Grade::note, "names",
          "the file has " + std::to_string(status.hard_links) +
              " names (hard links): claims are safe only if all programs use this one. To find the others: find / "
              "-xdev -samefile " +
              status.path);
    } else if (!status.mounts_known) {
      add(Grade::note, "names",
          "this kernel does not report whether the file is mounted by itself: mount its directory, not the file");
    } else {
      add(Grade::fine, "names",
          status.asked_path == status.path ? "one" : "one: " + status.asked_path + " leads to " + status.path);
    }
  }

  // Of the file system of `path`. A quota of a directory (XFS, ext4) counts as the size of its disk, another one shows
  // only in a write: --probe.
  void look_at_space(const std::string& name, const std::string& path, const std::string& consequence) {
    const auto space = free_space(path);
    if (!space) return;
    std::string text = show_size(space->free_bytes) + " of " + show_size(space->total_bytes) + " are free";
    if (space->is_out_of_names()) text += ", but no more files can be made (df -i)";
    if (space->is_full()) return add(Grade::problem, name, text + ": " + consequence);
    add(space->is_low() ? Grade::note : Grade::fine, name,
        text + (space->is_low() ? ": make room. once sweep frees room for new records only" : ""));
  }

  // A full disk is why a file may not be opened: SQLite makes files beside it.
  void look_at_space_of_unopened() {
    try {
      const stores::Url url(store_url(options_.store));
      if (url.scheme() == "sqlite")
        look_at_space("space", url.path(), "no program can open the store until there is room");
    } catch (const Exception&) {  // The malformed URL was reported.
    }
  }

  void look_at_file() {
    const auto status = stores::sqlite_status(*access_.store);
    if (!status) return;
    add(Grade::fine, "file",
        show_size(status->file_bytes) +
            (status->about_records ? ", about " + std::to_string(*status->about_records) + " records (an estimate)"
                                   : "") +
            ", log " + show_size(status->log_bytes) + ", schema " + std::to_string(status->schema_version) +
            ", SQLite " + status->sqlite_version);
    look_at_names(*status);
    look_at_space("space", status->path,
                  "new operations are refused, or soon will be, until there is room; replays go on");
    if (!status->shared_file_system.empty()) {
      add(Grade::note, "file system",
          status->shared_file_system +
              ": claims are safe only if all programs run on one host and open the file by this path "
              "(allow_shared_file_system=1)");
    }
    if (!status->checkpoint_error.empty()) {
      add(Grade::problem, "checkpoint",
          "the log could not be copied into the file: " + status->checkpoint_error +
              ". The log grows until it is mended");
    }
    struct stat kind {};
    if (stat(status->path.c_str(), &kind) == 0) {
      const unsigned open_to = kind.st_mode & 0077U;
      if ((open_to & 07U) != 0) {
        add(Grade::problem, "permissions",
            "every user of this host can open the file and read its results: chmod o= " + status->path);
      } else if (kind.st_uid != geteuid() && geteuid() != 0) {
        add(Grade::note, "permissions", "the file belongs to uid " + std::to_string(kind.st_uid) + ", not to you");
      } else {
        const bool is_mine = kind.st_uid == geteuid();
        const std::string owner = is_mine ? "you" : "root and its owner, uid " + std::to_string(kind.st_uid) + ",";
        const std::string group = is_mine ? "your group" : "gid " + std::to_string(kind.st_gid) + ",";
        add(Grade::fine, "permissions", "only " + owner + (open_to == 0 ? "" : " and " + group) + " can open it");
      }
    }
    try {
      const auto faults = stores::check_sqlite(
          *access_.store, options_.quick ? stores::SqliteCheck::newest : stores::SqliteCheck::whole);
      for (const std::string& fault : faults) add(Grade::problem, "integrity", fault);
      if (faults.empty()) {
        add(Grade::fine, "integrity",
            options_.quick
                ? "the newest 20000 records can be read, each is found by its key, and no key is stored twice"
                : "the file is sound, every record can be read and is found by its key, and no key is stored twice");
      }
    } catch (const Exception& error) {
      add(Grade::problem, "integrity", error.what());
    }
  }

#if ONCE_AWS
  // For a store in DynamoDB: our identity there, and the state of its table.
  void look_at_table() {
    if (!access_.url.starts_with("dynamodb:")) return;
    try {
      stores::DynamoDbOptions options = stores::dynamodb_options(access_.url);
      options.credentials = aws::default_credentials({.profile = options.profile});
      const auto who = wait_for<aws::CredentialsAnswer>(
          [&](Callback<void(aws::CredentialsAnswer)> done) { options.credentials->get(std::move(done)); });
      if (!who.credentials) return add(Grade::problem, "credentials", who.error.message);
      const auto ends = who.credentials->expires_at;
      add(Grade::fine, "credentials",
          who.credentials->source + (ends ? ", until " + text::rfc3339(*ends) + ", then new ones" : ""));
      const auto transport = stores::make_dynamodb_transport(options);
      const stores::TableReport table = stores::check_table(*transport, options);
      told_ = table.time;
      false_time_ = table.false_time;
      if (options_.quick) about_ = table.records;
      for (const stores::TableFinding& finding : table.findings) {
        add_found(finding);
        if (finding.name == "index" && finding.grade == stores::TableFinding::Grade::fine) {
          indexed_ = stores::wants_open_index(options);
        }
      }
    } catch (const Exception& error) {
      add(Grade::problem, "table", error.what());
    }
  }
#endif

#if ONCE_POSTGRESQL
  // For a store in PostgreSQL: its schema, and what its server promises.
  void look_at_schema() {
    if (!access_.url.starts_with("postgresql:") && !access_.url.starts_with("postgres:")) return;
    try {
      const auto report = stores::check_postgresql_schema(stores::postgresql_options(access_.url));
      for (const stores::TableFinding& finding : report.findings) add_found(finding);
      if (report.exists)
        blocking::get(*access_.store, Key("once doctor", "clock").stored());  // Its answer tells the time.
    } catch (const Exception& error) {
      add(Grade::problem, "schema", error.what());
    }
  }
#endif

  // Whether its records move to another store: then it refuses operations.
  void look_at_gate() {
    StoreGate* const gate = innermost(*access_.store).gate();
    if (gate == nullptr) return;
    try {
      const std::string refusal = gate_refusal(gate->mark());
      if (!refusal.empty()) add(Grade::problem, "gate", refusal);
    } catch (const Exception& error) {
      add(Grade::problem, "gate", error.what());
    }
  }

  // What relates this process's clock to that of the others that have the file open.
  static std::string compared(const stores::SqliteStatus& status) {
    const auto ahead = std::chrono::floor<Millis>(status.uptime_ahead);
    const std::string in_file =
        status.boot_in_file == status.boot_id
            ? "as in the file; "
            : "and in the file '" + escaped(status.boot_in_file) +
                  "': the host was started anew and nobody has written since, or a container shows another boot id, "
                  "which may not write while others have the file open; ";
    return ". Compared: boot id " + status.boot_id + ", " + in_file +
           (ahead == Millis{0} ? std::string("the uptime is the host's")
                               : "in this time namespace the uptime is " + show_duration(std::chrono::abs(ahead)) +
                                     (ahead < Millis{0} ? " behind" : " ahead of") + " the host's, and is converted");
  }

  // Of a store that was opened only to be read, where no program may write to it.
  static std::string why_not_compared() {
    std::string why = "the boot id of the host could not be read";
    try {
      static_cast<void>(host_boot());
    } catch (const Exception& error) {
      why = error.what();
    }
    return why + ". Programs that claim keys refuse to open the file here";
  }

  void look_at_clock() {
    constexpr Millis most{1'000};
    if (false_time_) {
      add(Grade::problem, "clock",
          "the Date of the store's answers is ignored: it is over five minutes from the signature that the store "
          "accepted. Either a proxy writes the Date, or the store checks no signatures and one of the two clocks is "
          "wrong. Until it is mended, leases are counted by this host's clock");
      return;
    }
    const auto told = told_ ? told_ : access_.store->time();
    if (!told && access_.store->capabilities().tells_time) return;  // It was not reached, which was reported already.
    if (!told) {
      add(Grade::note, "clock", "the store does not report its time: the clocks of all hosts that share it must agree");
      return;
    }
    const Millis ahead = told->now - system_clock()->now();
    std::string text = "the store's time is " + show_duration(std::chrono::abs(ahead)) +
                       (ahead < Millis{0} ? " behind" : " ahead of") + " this host's clock" +
                       (told->error > Millis{0} ? ", give or take " + show_duration(told->error) : "");
    if (const auto status = stores::sqlite_status(*access_.store)) {
      if (status->boot_id.empty()) return add(Grade::problem, "clock", why_not_compared());
      text += compared(*status);
    }
    if (std::chrono::abs(ahead) > most) {
      add(Grade::note, "clock",
          text + ". Leases are safe, because they are counted by the store's time, but the times shown here are off");
    } else {
      add(Grade::fine, "clock", text);
    }
  }

  void look_at_offload() {
    if (!access_.offload) {
      add(Grade::note, "offload", "no place for large results: a result too large for the store is not kept");
      return;
    }
    if (options_.probe) return probe_offload();
    if (access_.offload_directory.empty()) {
      return add(Grade::note, "offload", access_.offload_name + " (--probe tries it)");
    }
    struct stat kind {};
    if (stat(access_.offload_directory.c_str(), &kind) != 0) {
      add(Grade::fine, "offload", access_.offload_directory + " will be created for the first large result");
    } else if (!S_ISDIR(kind.st_mode) || access(access_.offload_directory.c_str(), R_OK | W_OK | X_OK) != 0) {
      add(Grade::problem, "offload",
          access_.offload_directory + " is not a directory that you can read and write: large results are lost");
    } else {
      add(Grade::fine, "offload", access_.offload_directory);
      look_at_space("offload space", access_.offload_directory, "large results are lost until there is room");
    }
  }

  // The old table that is read before a new claim.
  void look_at_fallback() {
    StoreOptions store = options_.store;
    try {
      const std::string file = take_fallback(store);
      if (!file.empty()) add(Grade::note, "fallback", importing::Fallback(file, std::nullopt).examine());
    } catch (const Exception& error) {
      add(Grade::problem, "fallback", std::string(error.what()) + ". Every new claim is refused until it is mended");
    }
  }

  // Stores a few bytes, reads them, removes them.
  void probe_offload() {
    const std::string bytes = "once doctor was here";
    Offload& offload = *access_.offload;
    const OffloadAnswer put =
        wait_for<OffloadAnswer>([&](auto done) { offload.put("doctor", bytes, std::move(done)); });
    if (put.error) return add(Grade::problem, "offload", put.error->message);
    const OffloadAnswer got = wait_for<OffloadAnswer>([&](auto done) { offload.get(put.text, std::move(done)); });
    const OffloadAnswer removed =
        wait_for<OffloadAnswer>([&](auto done) { offload.remove(put.text, std::move(done)); });
    if (got.error) return add(Grade::problem, "offload", got.error->message);
    if (got.text != bytes) return add(Grade::problem, "offload", put.text + " returned other bytes than were written");
    if (removed.error) return add(Grade::problem, "offload", removed.error->message);
    add(Grade::fine, "offload", access_.offload_name + ": a small result was written, read and removed");
  }

  void probe() {
    const Uptime begun = system_clock()->uptime();
    const auto error = wait_for<std::optional<Error>>([&](Callback<void(std::optional<Error>)> done) {
      operate::probe(*access_.store, *system_clock(), *system_random(), who() + " once doctor --probe",
                     std::move(done));
    });
    if (error) return add(Grade::problem, "probe", error->message);
    const auto took = std::chrono::floor<Millis>(system_clock()->uptime() - begun);
    add(Grade::fine, "probe", "a record was written, read and removed in " + show_duration(took));
  }

  int count() {
    Time now{};
    try {
      now = operate::learn_now(*access_.store, *system_clock()).now;
    } catch (const Exception& error) {
      add(Grade::problem, "records", error.what());
      return exit_code_of_store(error.kind());
    }
    std::vector<operate::Filter> wanted(1);
    if (about_) {
      const std::string about = "about " + std::to_string(*about_) +
                                " in the table, as DynamoDB counts them every "
                                "six hours";
      add(Grade::fine, "records", about);
      if (!indexed_) {
        add(Grade::note, "waiting",
            "not counted: without an index that needs a read of the whole table, which --quick avoids");
        return exit_ok;
      }
      wanted = {{.standing = std::nullopt, .in_progress = true}, {.standing = operate::Standing::unknown}};
    }
    Progress progress("counted");
    std::optional<Error> error;
    for (const operate::Filter& filter : wanted) {
      auto failed = operate::for_each(*access_.store, filter, now, [&](const Record& record) {
        operate::count(record, now, counts_);
        if (is_sealed(record)) ++unopened_;
        keep_for_look(record.result);
        progress.tell(counts_.records);
        return true;
      });
      if (failed) error = std::move(failed);
    }
    progress.end();
    if (error) {
      add(Grade::problem, "records", error->message);
      if (error->kind != ErrorKind::corrupt) return exit_code_of_store(error->kind);
    }
    look_at_seals();
    look_at_results();
    const auto number = [&](operate::Standing standing) { return counts_.of(standing); };
    add(Grade::fine, about_ ? "open" : "records",
        std::to_string(counts_.records) + ", " + std::to_string(number(operate::Standing::running)) + " running");
    if (const auto unknown = number(operate::Standing::unknown); unknown > 0) {
      add(Grade::problem, "unknown",
          std::to_string(unknown) + " waiting for your decision, the oldest since " +
              relative(*counts_.oldest_unknown, now) + ": see once ls --state unknown, then use once resolve");
    }
    if (const auto lapsed = number(operate::Standing::lapsed); lapsed > 0) {
      add(Grade::problem, "lapsed",
          std::to_string(lapsed) + " started and not finished, the oldest lapsed " +
              relative(*counts_.oldest_lapsed, now) + ": the next caller " + fate_of_lapsed(lapsed) +
              " (see once ls --state lapsed)");
    }
    if (counts_.overdue > 0) {
      add(Grade::problem, "overdue",
          std::to_string(counts_.overdue) + " should have ended by now, the oldest " +
              relative(*counts_.oldest_overdue, now) + ": see once ls --overdue");
    }
    if (const auto expired = number(operate::Standing::expired); expired > 0) {
      add(Grade::note, "expired", std::to_string(expired) + " still take room: remove them with once sweep");
    }
    return error ? exit_corrupt : exit_ok;
  }

  // What the next call of a lapsed operation does.
  [[nodiscard]] std::string fate_of_lapsed(std::uint64_t lapsed) const {
    if (counts_.lapsed_on_hold == 0) return "takes each over";
    if (counts_.lapsed_on_hold == lapsed) return "makes each unknown, as they are on hold";
    return "makes " + std::to_string(counts_.lapsed_on_hold) +
           " unknown, which are on hold, and takes each other one over";
  }

  // The newest of the results that are kept outside the store, as far as they are small enough to be read now.
  void keep_for_look(const Result& result) {
    constexpr std::size_t most = 20;
    constexpr std::size_t small_bytes = std::size_t{4} * 1024 * 1024;
    if (result.placement != Placement::offloaded || result.size > small_bytes) return;
    if (results_.size() == most) results_.pop_front();
    results_.push_back(result);
  }

  // A store may have been restored, or copied, without them.
  void look_at_results() {
    if (counts_.offloaded == 0) return;
    if (!access_.offload) {
      return add(Grade::problem, "results",
                 std::to_string(counts_.offloaded) +
                     " are kept outside the store, and here --offload is none: nobody can get them");
    }
    std::string first;
    std::size_t missing = 0;
    for (const Result& result : results_) {
      OffloadAnswer got = wait_for<OffloadAnswer>(
          [&](Callback<void(OffloadAnswer)> done) { access_.offload->get(result.location, std::move(done)); });
      const auto error = got.error ? std::move(got.error) : check_offloaded(result, got.text);
      if (error && missing++ == 0) first = error->message;
    }
    const std::string looked_at = std::to_string(counts_.offloaded) + " are kept outside the store; ";
    if (missing > 0) {
      return add(Grade::problem, "results",
                 looked_at + std::to_string(missing) + " of " + std::to_string(results_.size()) +
                     " that were looked at cannot be read: " + first +
                     ". Restore them from the backup that belongs to this store");
    }
    add(Grade::fine, "results", looked_at + std::to_string(results_.size()) + " were looked at, and are whole");
  }

  // Sealed records and records in the clear, among those that were counted.
  void look_at_seals() {
    const SealCounts seals = seal_counts(*access_.store).value_or(SealCounts());
    const bool has_keys = seal_counts(*access_.store).has_value();
    std::uint64_t sealed = has_keys ? 0 : unopened_;
    std::string by_key;
    for (const auto& [id, count] : seals.sealed) {
      sealed += count;
      by_key += (by_key.empty() ? "" : ", ") + std::to_string(count) + " with the key '" + escaped(id) + "'";
    }
    const std::uint64_t clear = has_keys ? seals.clear : counts_.records - unopened_;
    if (!has_keys && sealed == 0) return;
    if (unopened_ > 0) {
      add(Grade::problem, "keys",
          std::to_string(unopened_) +
              " sealed records cannot be opened with the keys that are given here: add seal=FILE "
              "to the store's URL, with all keys that programs use");
    }
    const std::string found = std::to_string(sealed) + " sealed" + (by_key.empty() ? "" : " (" + by_key + ")") + ", " +
                              std::to_string(clear) + " in the clear";
    if (clear > 0 && !options_.mixed) {
      add(Grade::problem, "seals",
          found +
              ": their payloads can be read in the store. Does a program lack the keys? If they are from before "
              "sealing began, they stay until they expire or are written: say --mixed");
    } else {
      add(clear > 0 ? Grade::note : Grade::fine, "seals", found);
    }
  }

  int report(int exit_code) {
    if (options_.json) {
      nlohmann::ordered_json json;
      json["version"] = ONCE_VERSION;
      json["ok"] = exit_code == exit_ok;
      json["findings"] = nlohmann::ordered_json::array();
      for (const Finding& finding : findings_) {
        json["findings"].push_back({{"grade", word(finding.grade)}, {"name", finding.name}, {"text", finding.text}});
      }
      json["counts"] = counts_json(counts_);
      return print(json_text(json), exit_code);
    }
    std::string text = "once " ONCE_VERSION "\n";
    for (const Finding& finding : findings_) {
      const std::string_view grade = word(finding.grade);
      text.append(grade).append(9 - grade.size(), ' ').append(finding.name);
      text.append(finding.name.size() < 13 ? 13 - finding.name.size() : 1, ' ').append(finding.text).append("\n");
    }
    return print(text, exit_code);
  }

  const DoctorOptions& options_;
  StoreAccess access_;
  std::optional<StoreTime> told_;  // The table's time.
  bool false_time_ = false;        // Its time was impossible.
  // With --quick, for a table: how many records it has, and whether those in progress and unknown can be listed without
  // reading all of it.
  std::optional<std::uint64_t> about_;
  bool indexed_ = false;
  operate::Counts counts_;
  std::deque<Result> results_;  // Some, for look_at_results().
  std::uint64_t unopened_ = 0;  // Sealed records whose key is not given.
  std::vector<Finding> findings_;
  bool found_problem_ = false;
};

}  // namespace

int examine(const DoctorOptions& options) { return Examination(options).run(); }

}  // namespace once::cli
