// The outcomes without a result, as exceptions: for callers that have only a value to return.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/record.hpp>

namespace once {

// A base for exceptions of the work that have a code of their own for Failure::code. Without it that is the name of the
// exception's C++ type.
class FailureCode {
 public:
  FailureCode() = default;
  FailureCode(const FailureCode&) = default;
  FailureCode& operator=(const FailureCode&) = default;
  virtual ~FailureCode() = default;

  [[nodiscard]] virtual const std::string& failure_code() const noexcept = 0;
};

// Base of those below: the operation was not run, or its result cannot be given. `record` may be empty.
class Rejected : public Exception {
 public:
  Rejected(ErrorKind kind, const std::string& message, std::shared_ptr<const Record> record)
      : Exception(kind, message), record_(std::move(record)) {}
  [[nodiscard]] const std::shared_ptr<const Record>& record() const noexcept { return record_; }

 private:
  std::shared_ptr<const Record> record_;
};

// Another caller is running it. Try again after retry_after().
class Conflict : public Rejected {
 public:
  Conflict(const std::string& message, std::shared_ptr<const Record> record, Millis retry_after)
      : Rejected(ErrorKind::unavailable, message, std::move(record)), retry_after_(retry_after) {}
  [[nodiscard]] Millis retry_after() const noexcept { return retry_after_; }

 private:
  Millis retry_after_;
};

// The key was used with another payload: a bug of the caller.
class Mismatch : public Rejected {
 public:
  using Rejected::Rejected;
};

// It was started, and its outcome is not known: an operator or a callback decides.
class OutcomeUnknown : public Rejected {
 public:
  using Rejected::Rejected;
};

// A stored failure, replayed. code() is the failing attempt's.
class StoredFailure : public Rejected {
 public:
  using Rejected::Rejected;
  [[nodiscard]] const std::string& code() const { return record()->failure.code; }
};

// This attempt lost its claim and no result is stored.
class ClaimLost : public Rejected {
 public:
  using Rejected::Rejected;
};

// The result was too large to keep.
class ResultDropped : public Rejected {
 public:
  using Rejected::Rejected;
};

// The store failed. kind() says whether the claim is certainly not there (unavailable) or may be (in_doubt).
class StoreFailed : public Rejected {
 public:
  using Rejected::Rejected;
};

// The writes that were to commit with the result (Context::commit_with) were refused, so neither is written. kind():
// unavailable if a condition of theirs did not hold, misuse if they can never be written. Policies treat it as thrown
// by the work.
class Declined : public Rejected {
 public:
  using Rejected::Rejected;
};

// A finish could not be written, and OnUnrecorded::raise is set or the result was to commit with other writes. The work
// ran.
class Unrecorded : public Rejected {
 public:
  using Rejected::Rejected;
};

}  // namespace once
