// once resolve: sets how an operation with unknown outcome ended.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "commands/change.hpp"
#include "commands/commands.hpp"
#include "frontends/http/stored_answer.hpp"
#include "operators/run_result.hpp"
#include "output/text.hpp"
#include "settings/read_input.hpp"

namespace once::cli {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 20;

struct ResolveOptions {
  ChangeOptions change;
  std::string as;
  std::string retention = "24h";
  std::string result_file;
  std::string error_file;
  std::string content_type;
  std::string code;
  std::string message;
  std::optional<int> exit_code;
  std::optional<unsigned> status;
  std::vector<std::string> headers;
  bool any_payload = false;
  bool force = false;
};

std::string read_part(const std::string& path, std::string_view option) {
  std::string bytes;
  const int error = read_input(path, max_file_bytes, bytes);
  if (error == 0) return bytes;
  misuse(std::string(option) + " " + escaped(path) + ": " +
         (error == EFBIG ? "larger than " + show_size(max_file_bytes) : std::strerror(error)));
}

// In the form of `once run`, which then replays it like any other.
Result run_result_of(const ResolveOptions& options, const std::string& output) {
  if (*options.exit_code < 0 || *options.exit_code > 255) misuse("--exit-code must be 0 to 255");
  if (!options.content_type.empty()) misuse("--exit-code makes a result of once run: leave out --content-type");
  Recorder recorder(2 * max_file_bytes + 64);
  recorder.add(Stream::output, output);
  if (!options.error_file.empty()) recorder.add(Stream::error, read_part(options.error_file, "--stderr"));
  return Result::inlined(recorder.finish({.signaled = false, .code = static_cast<std::uint8_t>(*options.exit_code)}),
                         std::string(run_content_type));
}

// In the form of `once proxy` and the library's HTTP adapters.
Result http_answer_of(const ResolveOptions& options, std::string body) {
  if (*options.status < 100 || *options.status > 599) misuse("--status must be 100 to 599");
  if (options.exit_code) misuse("give --status or --exit-code, not both");
  if (!options.content_type.empty()) misuse("with --status write --header 'Content-Type: ...', not --content-type");
  http::Answer answer{.status = *options.status, .headers = {}, .body = std::move(body)};
  for (const std::string& line : options.headers) {
    const auto colon = line.find(':');
    const auto value = line.find_first_not_of(" \t", std::min(colon, line.size() - 1) + 1);
    if (colon == std::string::npos || colon == 0) misuse("--header " + escaped(line) + ": write 'Name: value'");
    answer.headers.push_back({line.substr(0, colon), value == std::string::npos ? "" : line.substr(value)});
  }
  Result result = http::encode_answer(answer, max_file_bytes);
  if (const auto kept = http::decode_answer(result.bytes); !kept.not_stored.empty()) {
    misuse("--header: " + kept.not_stored + " cannot be part of a stored answer");
  }
  return result;
}

operate::Resolution wanted_by(const ResolveOptions& options) {
  std::optional<Result> result;
  if (options.as == "released") {
    if (!options.result_file.empty() || !options.error_file.empty() || options.exit_code ||
        !options.content_type.empty() || options.status || !options.headers.empty()) {
      misuse(
          "--as released keeps no result: leave out --result, --stderr, --exit-code, --status, --header and "
          "--content-type");
    }
  } else {
    if (options.any_payload) misuse("--any-payload goes with --as released");
    if (!options.headers.empty() && !options.status) misuse("--header needs --status");
    std::string bytes = options.result_file.empty() ? "" : read_part(options.result_file, "--result");
    if (!options.exit_code && !options.error_file.empty()) misuse("--stderr needs --exit-code");
    result = options.status      ? http_answer_of(options, std::move(bytes))
             : options.exit_code ? run_result_of(options, bytes)
                                 : Result::inlined(std::move(bytes), options.content_type);
  }
  Failure failure{.code = options.code, .message = options.message};
  if (options.as == "failed" && options.exit_code && failure.code.empty()) {
    failure.code = "exit " + std::to_string(*options.exit_code);
  }
  operate::Resolution resolution = resolution_of(options.as, std::move(result), std::move(failure));
  resolution.force = options.force;
  resolution.any_payload = options.any_payload;
  resolution.retention = parse_retention(options.retention, "--retention");
  return resolution;
}

}  // namespace

void add_resolve(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<ResolveOptions>();
  CLI::App* const resolve = app.add_subcommand("resolve", "Decide how an operation ended whose outcome is unknown");
  add_change_options(*resolve, options->change);
  resolve
      ->add_option("--as", options->as,
                   "completed (replay this result from now on), failed (replay this failure), or released (it did\n"
                   "not happen: the next caller runs it)")
      ->required()
      ->check(CLI::IsMember({"completed", "failed", "released"}));
  resolve->add_option("--result", options->result_file,
                      "A file with the result (with --exit-code: the standard output); - is standard input");
  resolve->add_option("--exit-code", options->exit_code, "For once run: the exit code to replay");
  resolve->add_option("--stderr", options->error_file, "With --exit-code: a file with the standard error");
  resolve->add_option("--status", options->status,
                      "For once proxy and other HTTP operations: the status to replay, with --result as the body");
  resolve
      ->add_option("--header", options->headers,
                   "With --status: a header, as in 'Content-Type: text/plain'; repeatable")
      ->allow_extra_args(false);
  resolve->add_flag("--any-payload", options->any_payload,
                    "With --as released: let the next caller send another payload (default: the same only)");
  resolve->add_option("--content-type", options->content_type, "The result's MIME type (default: none)");
  resolve->add_option("--code", options->code, "With --as failed: the failure's code, for programs");
  resolve->add_option("--message", options->message, "With --as failed: the failure's message, for people");
  resolve->add_option("--retention", options->retention, "How long the result is replayed, or never to let it expire");
  resolve->add_flag("--force", options->force,
                    "Also resolve a live claim (its holder's writes are refused from then on, but its work goes on),\n"
                    "and a record with a result (which is lost)");
  resolve->footer(
      "Examples:\n"
      "  once resolve --key order-17 --as completed --exit-code 0 --result receipt.txt --reason 'seen in the ledger'\n"
      "  once resolve --key order-18 --as released --reason 'never reached the bank'\n"
      "  once resolve --all --state unknown --holder web-1 --as released --reason 'web-1 had no network'\n"
      "  once resolve --key c-1 --scope api/pay --as completed --status 201 --result answer.json \\\n"
      "    --header 'Content-Type: application/json' --reason 'in the ledger'");
  resolve->callback([options, &invocation] {
    invocation.action = [options] {
      const operate::Resolution resolution = wanted_by(*options);
      return change(
          options->change,
          {.planner = [&](const Record& seen, const operate::Reason& reason, Stamp stamp,
                          Millis) { return operate::plan_resolve(seen, resolution, reason, fresh_owner(), stamp); },
           .done = "resolved"});
    };
  });
}

}  // namespace once::cli
