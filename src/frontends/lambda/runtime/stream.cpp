// A response that is sent while it is made: chunks, and an error in the trailers.
#include <cxxabi.h>

#include <array>
#include <charconv>
#include <initializer_list>
#include <utility>

#include <once/error.hpp>

#include "frontends/lambda/metrics/invocation_span.hpp"
#include "frontends/lambda/runtime/worker.hpp"
#include "text/base64.hpp"

namespace once::lambda::runtime {

namespace {

using StreamProblem = RuntimeProblem::Kind;

constexpr std::string_view error_body_header = "Lambda-Runtime-Function-Error-Body";

}  // namespace

// Sends chunks as the handler writes them.
class Worker::Stream final : public ResponseStream {
 public:
  Stream(Worker& worker, const std::string& id) : worker_(worker), id_(id) {}

  void content_type(std::string_view type) override {
    require_unstarted("content_type()");
    type_ = printable(type, max_type_bytes);
  }

  void http_head(std::string_view json) override {
    require_unstarted("http_head()");
    type_ = "application/vnd.awslambda.http-integration-response";
    prelude_.assign(json).append(8, '\0');  // Separates it from the body.
  }

  void write(std::string_view bytes) override {
    if (bytes.empty()) return;
    if (broken_) throw_broken();
    const std::string head = started_ ? std::string() : start();
    const std::string size = chunk_size(bytes.size());
    if (!sent({head, size, bytes, "\r\n"})) throw_broken();
    written_ += bytes.size();
  }

  [[nodiscard]] bool started() const noexcept { return started_; }

  // Called after the handler, also if it threw.
  void finish(const std::optional<ErrorAnswer>& failure) {
    if (!broken_) {
      std::string end = started_ ? std::string() : start();
      end += "0\r\n";
      if (failure) {
        end.append(error_type_header).append(": ").append(failure->header()).append("\r\n");
        end.append(error_body_header).append(": ");
        end.append(text::encode_base64(failure->body(max_trailer_message_bytes))).append("\r\n");
      }
      end += "\r\n";
      if (sent({end})) {
        ApiAnswer answer;
        if (worker_.connection_.read_answer(answer, max_answer_bytes, nullptr) == Trouble::none) {
          answer_ = std::move(answer);
        } else {
          broken_ = true;
        }
      }
    }
    if (answer_ && answer_->result_int() >= 500) {
      return worker_.shared_.fail(
          id_, "the Runtime API answered with " + said(*answer_) + " to a streamed response; the runtime ends");
    }
    if (answer_) return worker_.judge_stream(id_, *answer_, written_);
    if (!started_) return worker_.answer_unsent(id_);
    worker_.shared_.report(StreamProblem::response_in_doubt, id_,
                           "the connection was lost with " + std::to_string(written_) +
                               " bytes of a streamed response sent: " + worker_.connection_.problem());
  }

 private:
  void require_unstarted(const std::string& call) const {
    if (started_) throw Exception(ErrorKind::misuse, call + " comes before the first write()");
  }
  [[noreturn]] static void throw_broken() {
    throw Exception(ErrorKind::unavailable, "the Runtime API takes no more of this response");
  }
  static std::string chunk_size(std::size_t size) {
    std::array<char, 20> hex{};
    const auto end = std::to_chars(hex.data(), hex.data() + hex.size(), size, 16).ptr;
    return std::string(hex.data(), end) + "\r\n";
  }

  // The head, which must still be sent. Empty: no connection.
  std::string start() {
    started_ = worker_.connection_.connect_if_needed();
    broken_ = !started_;
    if (broken_) return {};
    std::string head =
        worker_.post_head("invocation/" + id_ + "/response",
                          "Content-Type: " + type_ + "\r\nLambda-Runtime-Function-Response-Mode: streaming\r\n" +
                              "Transfer-Encoding: chunked\r\nTrailer: " + std::string(error_type_header) + ", " +
                              std::string(error_body_header) + "\r\n\r\n");
    if (!prelude_.empty()) head += chunk_size(prelude_.size()) + prelude_ + "\r\n";
    return head;
  }

  bool sent(std::initializer_list<std::string_view> parts) {
    if (broken_) return false;
    if (worker_.connection_.send_all({parts.begin(), parts.size()})) return true;
    broken_ = true;
    ApiAnswer answer;  // The answer may say why.
    if (worker_.connection_.read_answer(answer, max_answer_bytes, nullptr) == Trouble::none) {
      answer_ = std::move(answer);
    }
    return false;
  }

  Worker& worker_;
  const std::string& id_;
  std::string type_ = "application/octet-stream";
  std::string prelude_;
  bool started_ = false;
  bool broken_ = false;
  std::size_t written_ = 0;
  std::optional<ApiAnswer> answer_;
};

void Worker::handle(const StreamingHandler& handler, const NextEvent& event) {
  const std::string& id = event.invocation.request_id;
  Stream stream(*this, id);
  std::optional<ErrorAnswer> failure;
  try {
    const InvocationSpan span(event.invocation);
    handler(event.body, event.invocation, stream);
  } catch (const abi::__forced_unwind&) {
    throw;  // The thread is being cancelled, which must not be prevented.
  } catch (...) {
    // Any exception is reported to its caller, before or after the sent bytes.
    failure = describe_exception();
  }
  if (failure && !stream.started()) return answer_failure(id, *failure);
  if (failure) {
    shared_.report(StreamProblem::handler_failed, id,
                   "the handler threw " + failure->header() + " after a part of its response was sent");
  }
  stream.finish(failure);
}

}  // namespace once::lambda::runtime
