// once copy: moves a store that is in use to another one.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <once/move.hpp>
#include <once/platform/system.hpp>
#include <once/stores/open.hpp>

#include "commands/commands.hpp"
#include "output/progress.hpp"
#include "output/report.hpp"
#include "output/text.hpp"
#include "settings/access.hpp"
#include "stores/url.hpp"
#include "text/rfc3339.hpp"

namespace once::cli {

namespace {

struct CopyCommand {
  std::string from;
  std::string to;
  std::string wait = "10m";
  bool dry_run = false;
  bool undo = false;
  bool json = false;
};

std::string_view word(MoveStep step) {
  switch (step) {
    case MoveStep::counting:
      return "counted";
    case MoveStep::draining:
      return "still running";
    case MoveStep::copying:
      return "copied";
    case MoveStep::comparing:
      return "compared";
  }
  return {};
}

// One line for the step that goes on.
class Steps {
 public:
  void tell(MoveStep step, std::uint64_t records) {
    if (!line_ || step != step_) {
      end();
      line_.emplace(std::string(word(step)));
      step_ = step;
    }
    line_->show(records);
  }
  void end() {
    if (line_) line_->end();
  }

 private:
  MoveStep step_ = MoveStep::counting;
  std::optional<Progress> line_;
};

int answer(const CopyCommand& options, nlohmann::ordered_json json, const std::string& text, int exit_code = exit_ok) {
  return print(options.json ? json_text(json) : text + "\n", exit_code);
}

std::string amount(std::uint64_t records, std::uint64_t bytes) {
  return std::to_string(records) + " records (" + show_size(bytes) + ")";
}

// An empty store in a temporary directory, which stands for one that is not there yet.
class StandIn {
 public:
  explicit StandIn(bool is_needed) {
    if (!is_needed) return;
    std::string made = std::filesystem::temp_directory_path() / "once-copy-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) throw Exception(ErrorKind::unavailable, "no temporary directory: " + made);
    directory_ = made;
  }
  ~StandIn() {
    std::error_code ignored;  // It is temporary.
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  [[nodiscard]] std::string url() const { return "sqlite:" + escape_url(directory_ + "/once.db"); }

 private:
  std::string directory_;
};

// The file that a copy to this URL would create, where it can. Empty: it is there, or is no file.
std::string file_to_create(const std::string& text) {
  const stores::Url url(text);
  if (url.scheme() != "sqlite" || url.flag("create") == false || ::access(url.path().c_str(), F_OK) == 0) return {};
  const std::string parent = std::filesystem::path(url.path()).parent_path();
  const bool fits =
      url.flag("create_directories") == true || ::access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) == 0;
  return fits ? url.path() : std::string();
}

int copy(const CopyCommand& options) {
  if (options.from.empty() || options.to.empty()) misuse("FROM and TO are URLs of stores, and neither may be empty");
  for (const std::string& url : {options.from, options.to}) {
    if (url.find("moves_to=") != std::string::npos) {
      misuse("write FROM and TO without moves_to=, which is for the programs that use both");
    }
  }
  Steps steps;
  MoveOptions how;
  how.wait = parse_duration(options.wait, "--wait");
  how.pause = [](Millis time) { std::this_thread::sleep_for(time); };
  how.progress = [&](MoveStep step, std::uint64_t records) { steps.tell(step, records); };
  how.clock = system_clock();
  how.random = system_random();
  Store& from = *open_access({.url = options.from, .offload = "none"}, Missing::refuse).store;
  const std::string missing_file = options.dry_run ? file_to_create(options.to) : std::string();
  const StandIn stand_in(!missing_file.empty());
  const bool only_looks = (options.dry_run && missing_file.empty()) || options.undo;
  Store& to = *open_access({.url = missing_file.empty() ? options.to : stand_in.url(), .offload = "none"},
                           only_looks ? Missing::refuse : Missing::create)
                   .store;
  const std::string from_name = from.name();
  const std::string to_name = missing_file.empty() ? to.name() : "sqlite:" + missing_file + ", which it creates";

  if (options.undo) {
    undo_move(from, to);
    return answer(options, {{"outcome", "undone"}}, from_name + " takes claims again, as before the move");
  }
  if (options.dry_run) {
    const MovePlan plan = plan_move(from, to, how);
    steps.end();
    return answer(options,
                  {{"outcome", "would_move"},
                   {"records", plan.records},
                   {"bytes", plan.bytes},
                   {"live", plan.live},
                   {"clocks_apart_ms", plan.clocks_apart.count()},
                   {"from", to_string(plan.from.gate)},
                   {"to", to_string(plan.to.gate)}},
                  "would move " + amount(plan.records, plan.bytes) + " from " + from_name + " to " + to_name +
                      ", after " + std::to_string(plan.live) + " running operations have ended. The clocks are " +
                      show_duration(std::chrono::abs(plan.clocks_apart)) + " apart");
  }
  const Moved moved = move_records(from, to, how);
  steps.end();
  switch (moved.kind) {
    case Moved::Kind::moved:
      return answer(options, {{"outcome", "moved"}, {"records", moved.records}, {"bytes", moved.bytes}},
                    "moved " + amount(moved.records, moved.bytes) + " from " + from_name + " to " + to_name +
                        ". The first is closed, the second takes claims: let every program use it");
    case Moved::Kind::was:
      return answer(options, {{"outcome", "was_moved"}},
                    from_name + " had moved to " + to_name + " before: nothing was done");
    case Moved::Kind::running:
      break;
  }
  std::string text = std::to_string(moved.live_count) +
                     (moved.live_count == 1 ? " operation still runs in " : " operations still run in ") + from_name +
                     ", which begins no others. Run the same command again to go on, or with --undo";
  nlohmann::ordered_json live = nlohmann::ordered_json::array();
  for (const Record& record : moved.live) {
    const KeyParts key = key_parts(record.key);
    live.push_back({{"scope", key.scope},
                    {"key", key.name},
                    {"holder", record.holder},
                    {"lease_until", text::rfc3339(record.lease_until)}});
    text += "\n  " + quoted_stored(record.key) + ", held by " + escaped(record.holder) + ", lease until " +
            text::rfc3339(record.lease_until);
  }
  if (!options.json) {
    say(text);
    return exit_conflict;
  }
  return answer(options, {{"outcome", "running"}, {"live_count", moved.live_count}, {"live", live}}, {}, exit_conflict);
}

}  // namespace

void add_copy(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<CopyCommand>();
  CLI::App* const command = app.add_subcommand("copy", "Move a store that is in use to another one");
  command->add_option("FROM", options->from, "The URL of the store to move: sqlite: or postgresql:")->required();
  command->add_option("TO", options->to, "The URL of an empty store, of either kind")->required();
  command->add_option("--wait", options->wait, "How long to wait for operations that run in FROM");
  command->add_flag("-n,--dry-run", options->dry_run, "Count and compare clocks, but change nothing")
      ->excludes(
          command->add_flag("--undo", options->undo, "Give up a move that is not over: FROM takes claims again"));
  command->add_flag("--json", options->json, "Write JSON");
  command->footer(
      "FROM begins no new operation from the start of the move on, for ever; it goes on replaying results. When\n"
      "the operations that run there have ended, their records are copied and compared, and TO takes claims.\n"
      "Programs that call the wrong one meanwhile are refused, and run nothing. If this command is killed, run it\n"
      "again. Exits with 240 if operations still run after --wait.\n\n"
      "Examples:\n"
      "  once copy --dry-run sqlite:/var/lib/once/once.db postgresql://owner@db.example/pay\n"
      "  once copy --wait 1h sqlite:/var/lib/once/once.db postgresql://owner@db.example/pay\n"
      "  once copy --undo sqlite:/var/lib/once/once.db postgresql://owner@db.example/pay");
  command->callback([options, &invocation] { invocation.action = [options] { return copy(*options); }; });
}

}  // namespace once::cli
