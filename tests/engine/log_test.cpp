// The lines of the log, and what the log does when they cannot be written.
#include <once/engine/log.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory_resource>
#include <string>
#include <thread>
#include <vector>

#include "engine_test.hpp"
#include "platform/file.hpp"
#include "text/json.hpp"
#include "text/utf8.hpp"

namespace once::testing {
namespace log_test {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));  // The last one without an end too.
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  return lines;
}

bool is_json(const std::string& line) {
  std::pmr::monotonic_buffer_resource arena;
  text::json::Value value;
  return text::json::try_parse(line, {.exact_numbers = false}, arena, value) &&
         value.kind() == text::json::Kind::object;
}

std::string member(const std::string& line, std::string_view name) {
  std::pmr::monotonic_buffer_resource arena;
  const text::json::Value value = text::json::parse(line, {.exact_numbers = false}, arena, "the line");
  return std::string(value.member(name).text());
}

// A line that the page shows.
std::string on_page(const std::string& line) {
  std::string page;
  EXPECT_EQ(read_file(ONCE_LOG_PAGE, std::size_t{1} << 20U, page), 0);
  EXPECT_NE(page.find("```\n" + line + "```"), std::string::npos) << line;
  return line;
}

Record claimed_record() {
  Record record;
  record.key = Key("payments", "customer@example.com").stored();
  record.attempt = 2;
  record.token = 1'767'225'600'000;
  record.holder = "host:7 once run";
  return record;
}

class LogTest : public ::testing::Test {
 protected:
  LogTest() { open_pipe(); }
  void open_pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }

  LogObserver log(LogFormat format = LogFormat::text, LogLevel level = LogLevel::debug) {
    return LogObserver({.format = format, .level = level, .descriptor = writer.get(), .clock = clock});
  }
  std::string written() const {
    std::string text(1 << 20, '\0');
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    const ssize_t size = read(reader.get(), text.data(), text.size());
    text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return text;
  }
  void fill_pipe() const {
    const int flags = fcntl(writer.get(), F_GETFL);
    fcntl(writer.get(), F_SETFL, flags | O_NONBLOCK);
    const std::string page(4096, '\n');
    while (write(writer.get(), page.data(), page.size()) > 0) {
    }
    fcntl(writer.get(), F_SETFL, flags);
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  Fd reader;
  Fd writer;
};

TEST_F(LogTest, ALineOfTextForPeople) {
  Record record = claimed_record();
  record.label = "order-17";
  log()({.kind = EventKind::took_over, .key = record.key, .record = &record, .took = 1'250us});
  EXPECT_EQ(
      written(),
      on_page(
          "2026-01-01T00:00:00.000Z notice took_over scope=payments key=order-17 key_hash=d32b3a69d40a7a52 attempt=2 "
          "token=1767225600000 holder=\"host:7 once run\" took_ms=1.250\n"));
}

TEST_F(LogTest, ALineOfJsonForPrograms) {
  Record record = claimed_record();
  record.label = "order-17";
  const Error error{ErrorKind::in_doubt, "no answer within 2s"};
  log(LogFormat::json)({.kind = EventKind::unrecorded, .key = record.key, .record = &record, .error = &error});
  EXPECT_EQ(written(),
            on_page(R"({"time":"2026-01-01T00:00:00.000Z","level":"warning","event":"unrecorded","scope":"payments",)"
                    R"("key":"order-17","key_hash":"d32b3a69d40a7a52","attempt":2,"token":1767225600000,)"
                    R"("holder":"host:7 once run","took_ms":0.000,"error":"in_doubt","why":"no answer within 2s"})"
                    "\n"));
}

TEST_F(LogTest, ALineTellsTheTraceOfItsCall) {
  CallTrace trace;
  trace.call = *TraceParent::from_text("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  log()({.kind = EventKind::replayed, .key = "k", .trace = &trace});
  EXPECT_THAT(written(), HasSubstr(" trace_id=4bf92f3577b34da6a3ce929d0e0e4736 span_id=00f067aa0ba902b7 took_ms="));
}

TEST_F(LogTest, AKeyWithoutALabelIsWrittenOnlyIfItIsADigest) {
  const Record record = claimed_record();
  const auto observe = log(LogFormat::json);
  observe({.kind = EventKind::claimed, .key = record.key, .record = &record});
  observe({.kind = EventKind::unprotected, .key = "customer@example.com"});
  observe({.kind = EventKind::claimed, .key = Key("s", std::string(64, 'a')).stored()});
  const auto lines = lines_of(written());
  ASSERT_EQ(lines.size(), 3U);
  for (const std::string& line : {lines[0], lines[1]}) {
    EXPECT_EQ(line.find("customer"), std::string::npos) << line;
    EXPECT_EQ(member(line, "key_hash").size(), 16U);
  }
  EXPECT_EQ(member(lines[2], "key"), std::string(64, 'a'));
  EXPECT_EQ(member(lines[2], "scope"), "s");
}

TEST_F(LogTest, NeverAPayloadNorAResult) {
  Record record = claimed_record();
  record.input = "secret-input";
  record.result = Result::inlined("secret-result");
  record.steps.push_back({"one", "secret-step"});
  record.state = State::completed;
  const auto observe = log();
  for (int i = 0; i <= static_cast<int>(EventKind::store_error); ++i) {
    observe({.kind = static_cast<EventKind>(i), .key = record.key, .record = &record});
  }
  const std::string text = written();
  EXPECT_EQ(lines_of(text).size(), static_cast<std::size_t>(EventKind::store_error) + 1);
  EXPECT_EQ(text.find("secret"), std::string::npos);
}

// Each could end the line, begin a forged one, move a terminal's cursor or break JSON.
const std::vector<std::string> hostile = {"a\n2026-01-01T00:00:00.000Z err forged",
                                          "a\r\n{\"event\":\"forged\"}",
                                          "\",\"event\":\"forged\",\"x\":\"",
                                          "\x1b[2J\x1b]0;title\x07",
                                          std::string("nul\0byte", 8),
                                          "\x7f\xc2\x9b[31m",
                                          "\xff\xfe\xc3\x28",
                                          "\xed\xa0\x80 lone surrogate",
                                          "cut \xf0\x9f\x98",
                                          "\xe2\x80\xa8 line \xe2\x80\xa9 separators",
                                          "\xe2\x80\xae right to left",
                                          "back\\slash = \"quote\" \t",
                                          "event=forged level=err"};

TEST_F(LogTest, HostileTextsBreakNoLine) {
  for (const std::string& text : hostile) {
    Record record = claimed_record();
    record.key = Key(text, text).stored();
    record.label = text;
    record.holder = text;
    record.state = State::failed;
    record.failure = {.code = text, .message = text};
    const Error error{ErrorKind::corrupt, text};
    for (const LogFormat format : {LogFormat::text, LogFormat::json}) {
      const auto observe = log(format);
      observe({.kind = EventKind::replayed, .key = record.key, .record = &record});
      observe({.kind = EventKind::store_error, .key = record.key, .record = &record, .error = &error});
      const std::string all = written();
      EXPECT_TRUE(text::valid_utf8(all));
      EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 2) << all;
      for (const std::string bad :
           {"\x1b", "\r", "\x7f", "\t", "\xc2\x9b", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xae"}) {
        EXPECT_EQ(all.find(bad), std::string::npos) << all;
      }
      EXPECT_EQ(all.find('\0'), std::string::npos) << all;
      for (const std::string& line : lines_of(all)) {
        if (format == LogFormat::json) {
          ASSERT_TRUE(is_json(line)) << line;
          EXPECT_NE(member(line, "event"), "forged");
          EXPECT_EQ(member(line, "key"), member(line, "holder"));
        } else {
          EXPECT_EQ(line.find(" event=forged"), std::string::npos) << line;
          EXPECT_EQ(line.find("=event=forged"), std::string::npos) << line;
          EXPECT_EQ(line.substr(0, 25), "2026-01-01T00:00:00.000Z ") << line;
        }
      }
    }
  }
}

TEST_F(LogTest, TheLongestTextsFitIntoOneAtomicWrite) {
  for (const std::string_view unit : {"x", "\x01", "\xff", "\xf0\x9f\x98\x80", "\""}) {
    std::string text;
    while (text.size() < 4'000) text += unit;
    Record record = claimed_record();
    record.key = Key(std::string(500, '#').substr(0, 200), std::string(64, 'f')).stored();
    record.token = static_cast<std::uint64_t>(INT64_MAX);
    record.attempt = UINT32_MAX;
    record.label = record.holder = text;
    record.state = State::failed;
    record.failure = {.code = text, .message = text};
    const Error error{ErrorKind::unavailable, text};
    const CallTrace trace;
    for (const LogFormat format : {LogFormat::text, LogFormat::json}) {
      log(format)({.kind = EventKind::replayed, .key = record.key, .record = &record, .trace = &trace, .took = 1'000h});
      log(format)(
          {.kind = EventKind::store_error, .key = record.key, .record = &record, .trace = &trace, .error = &error});
      const auto lines = lines_of(written());
      ASSERT_EQ(lines.size(), 2U);
      for (const std::string& line : lines) {
        EXPECT_LT(line.size(), LogObserver::max_line_bytes);
        EXPECT_NE(line.find("…"), std::string::npos);
        if (format == LogFormat::json) {
          EXPECT_TRUE(is_json(line)) << line;
        }
      }
    }
  }
}

TEST_F(LogTest, SaysWhatReconcilingDecidedAndWhy) {
  Record record = claimed_record();
  record.note = "released by reconcile: no such charge";
  const Error error{ErrorKind::unavailable, "connection refused"};
  log()({.kind = EventKind::reconciled, .key = record.key, .record = &record});
  log()({.kind = EventKind::reconcile_later, .key = record.key, .record = &record, .error = &error});
  const auto lines = lines_of(written());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], HasSubstr(" notice reconciled "));
  EXPECT_THAT(lines[0], HasSubstr(R"(why="released by reconcile: no such charge")"));
  EXPECT_THAT(lines[1], HasSubstr(" info reconcile_later "));
  EXPECT_THAT(lines[1], HasSubstr(R"(why="connection refused")"));
}

TEST_F(LogTest, WritesOnlyWhatIsSevereEnough) {
  const auto observe = log(LogFormat::text, LogLevel::warning);
  for (int i = 0; i <= static_cast<int>(EventKind::store_error); ++i) observe({.kind = static_cast<EventKind>(i)});
  std::vector<std::string> words;
  for (const std::string& line : lines_of(written())) words.push_back(line.substr(25, line.find(' ', 33) - 25));
  EXPECT_THAT(words, ElementsAre("warning mismatch", "warning unknown", "warning renewal_lost", "warning held",
                                 "warning abandoned", "err finish_refused", "warning unrecorded", "warning unprotected",
                                 "warning reconcile_gave_up", "err store_error"));
}

TEST(LogPage, HasEveryEventWithItsLevel) {
  std::string page;
  ASSERT_EQ(read_file(ONCE_LOG_PAGE, std::size_t{1} << 20U, page), 0);
  const auto rows = lines_of(page);
  for (int i = 0; i <= static_cast<int>(EventKind::store_error); ++i) {
    const auto kind = static_cast<EventKind>(i);
    const std::string name = "`" + std::string(to_string(kind)) + "`";
    const std::string level = " | `" + std::string(to_string(level_of(kind))) + "` | ";
    EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                            [&](const std::string& row) {
                              const std::size_t at = row.find(level);
                              return row.starts_with("| `") && at != std::string::npos && row.find(name) < at;
                            }),
              1)
        << name;
  }
}

TEST(LogLevels, HaveTheWordsOfSyslog) {
  for (const LogLevel level : {LogLevel::err, LogLevel::warning, LogLevel::notice, LogLevel::info, LogLevel::debug}) {
    EXPECT_EQ(log_level_from_string(to_string(level)), level);
  }
  EXPECT_EQ(log_level_from_string("error"), std::nullopt);
  EXPECT_EQ(log_level_from_string(""), std::nullopt);
}

TEST_F(LogTest, AStoreThatFailsIsToldAtOnceAndThenNowAndThen) {
  const auto observe = log(LogFormat::json);
  const auto fail = [&](const char* message) {
    const Error error{ErrorKind::misuse, message};
    observe({.kind = EventKind::store_error, .error = &error});
  };
  fail("AccessDenied");
  EXPECT_EQ(member(written(), "why"), "AccessDenied");
  clock->advance(29'999ms);
  fail("AccessDenied");
  fail("no table");
  EXPECT_EQ(written(), "");
  clock->advance(1ms);
  fail("late");
  const std::string line = written();
  EXPECT_EQ(member(line, "why"), "late");
  EXPECT_EQ(member(line, "left_out"), "2");
  clock->advance(1h);
  fail("gone");
  EXPECT_EQ(written().find("left_out"), std::string::npos);
}

TEST_F(LogTest, AFullPipeBlocksNobodyAndItsLossIsCounted) {
  const auto observe = log(LogFormat::json);
  fill_pipe();
  observe({.kind = EventKind::claimed});
  observe({.kind = EventKind::completed});
  EXPECT_EQ(observe.lines_lost(), 2U);
  EXPECT_EQ(fcntl(writer.get(), F_GETFL) & O_NONBLOCK, 0) << "other processes write to it too";
  written();
  observe({.kind = EventKind::replayed});
  const auto lines = lines_of(written());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(member(lines[0], "event"), "lines_lost");
  EXPECT_EQ(member(lines[0], "lines"), "2");
  EXPECT_EQ(member(lines[1], "event"), "replayed");
}

TEST_F(LogTest, APipeWithoutAReaderEndsNothing) {
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  const auto observe = log();
  reader.reset();
  observe({.kind = EventKind::claimed});
  EXPECT_EQ(observe.lines_lost(), 1U);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0);
  std::signal(SIGPIPE, before);
}

TEST_F(LogTest, ASignalThatTheProgramKeepsPendingStaysSo) {
  sigset_t pipe_signal;
  sigset_t before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const auto observe = log();
  reader.reset();
  observe({.kind = EventKind::claimed});
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0) << "none was before";
  raise(SIGPIPE);
  observe({.kind = EventKind::claimed});
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 1);
  constexpr timespec at_once{};
  EXPECT_EQ(sigtimedwait(&pipe_signal, nullptr, &at_once), SIGPIPE);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(observe.lines_lost(), 2U);
}

TEST_F(LogTest, AClosedDescriptorEndsNothing) {
  const auto observe = log();
  writer.reset();
  observe({.kind = EventKind::claimed});
  const LogObserver none({.descriptor = -1});
  none({.kind = EventKind::claimed});
  EXPECT_EQ(none.lines_lost(), 1U);
}

TEST_F(LogTest, AFullSocketBlocksNobody) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  reader.reset(ends[0]);
  writer.reset(ends[1]);
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  const auto observe = log(LogFormat::json);
  observe({.kind = EventKind::claimed});
  EXPECT_EQ(member(written(), "event"), "claimed");
  while (observe.lines_lost() == 0) observe({.kind = EventKind::claimed});
  reader.reset();
  observe({.kind = EventKind::claimed});
  EXPECT_GE(observe.lines_lost(), 2U);
  std::signal(SIGPIPE, before);
}

class LogFileTest : public LogTest {
 protected:
  LogFileTest() { writer = open(); }
  void TearDown() override { unlink(path.c_str()); }
  Fd open() const { return Fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)); }
  std::string text() const {
    std::string out;
    EXPECT_EQ(read_file(path, std::size_t{1} << 26U, out), 0);
    return out;
  }
  const std::string path = ::testing::TempDir() + "once-log-" + std::to_string(getpid());
};

TEST_F(LogFileTest, AfterAFullDiskWholeLinesFollow) {
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const auto observe = log(LogFormat::json);
  observe({.kind = EventKind::claimed});
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = text().size() + 10;
  setrlimit(RLIMIT_FSIZE, &limit);
  observe({.kind = EventKind::work_done});  // 10 bytes of it are written.
  observe({.kind = EventKind::completed});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  EXPECT_EQ(observe.lines_lost(), 2U);
  observe({.kind = EventKind::replayed});
  const auto lines = lines_of(text());
  ASSERT_EQ(lines.size(), 4U) << text();
  EXPECT_EQ(lines[1].size(), 10U);
  EXPECT_EQ(member(lines[0], "event"), "claimed");
  EXPECT_EQ(member(lines[2], "event"), "lines_lost");
  EXPECT_EQ(member(lines[2], "lines"), "2");
  EXPECT_EQ(member(lines[3], "event"), "replayed");
}

TEST_F(LogFileTest, LinesOfThreadsAndProgramsDoNotMix) {
  constexpr int threads = 8;
  constexpr int each = 500;
  Record record = claimed_record();
  record.label = std::string(1'000, 'x');
  const Fd second = open();  // As another process has it.
  const std::array<LogObserver, 2> logs = {
      log(LogFormat::json), LogObserver({.format = LogFormat::json, .descriptor = second.get(), .clock = clock})};
  {
    std::vector<std::jthread> running;
    running.reserve(threads);
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        for (int n = 0; n < each; ++n)
          logs.at(i % 2)({.kind = EventKind::claimed, .key = record.key, .record = &record});
      });
    }
  }
  const auto lines = lines_of(text());
  EXPECT_EQ(lines.size(), std::size_t{threads} * each);
  for (const std::string& line : lines) ASSERT_TRUE(is_json(line)) << line;
}

// The process dies after its work, before its finish: the log has the line, the record has no result.
class LogOfADeathTest : public LogFileTest {};

TEST_F(LogOfADeathTest, WorkDoneIsInTheFileBeforeTheFinishIsSent) {
  const auto store = std::make_shared<ScriptStore>(clock);
  EXPECT_EXIT(
      {
        Engine engine({.store = store, .scope = "test", .observer = log(LogFormat::json), .clock = clock});
        static_cast<void>(engine.run("a", "", [&]() -> std::string {
          store->before_next_write([](Store&) { raise(SIGKILL); });
          return "done";
        }));
      },
      ::testing::KilledBySignal(SIGKILL), "");
  const auto lines = lines_of(text());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(member(lines[0], "event"), "claimed");
  EXPECT_EQ(member(lines[1], "event"), "work_done");
  EXPECT_EQ(member(lines[0], "token"), member(lines[1], "token"));
}

}  // namespace log_test
}  // namespace once::testing
