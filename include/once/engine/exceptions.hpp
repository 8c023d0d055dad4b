// Outcomes without a result, as exceptions, for calls that return a plain value.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/record.hpp>

namespace once {

// A base for the work's exceptions that set Failure::code. Otherwise the code is the name of the exception's C++ type.
class FailureCode {
 public:
  FailureCode() = default;
  FailureCode(const FailureCode&) = default;
  FailureCode& operator=(const FailureCode&) = default;
  virtual ~FailureCode() = default;

  [[nodiscard]] virtual const std::string& failure_code() const noexcept = 0;  // Cut to Failure::max_code_bytes.
};

// Base of the exceptions below: the operation did not run, or its result cannot be given. record() may be null.
class Rejected : public Exception {
 public:
  // For the engine. `record`: the one that the exception is about, or null.
  Rejected(ErrorKind kind, const std::string& message, std::shared_ptr<const Record> record)
      : Exception(kind, message), record_(std::move(record)) {}
  // The record that was seen, or null.
  [[nodiscard]] const std::shared_ptr<const Record>& record() const noexcept { return record_; }

 private:
  std::shared_ptr<const Record> record_;
};

// Another attempt is running the operation. Try again after retry_after().
class Conflict : public Rejected {
 public:
  // For the engine.
  Conflict(const std::string& message, std::shared_ptr<const Record> record, Millis retry_after)
      : Rejected(ErrorKind::unavailable, message, std::move(record)), retry_after_(retry_after) {}
  // Until the other claim's lease ends.
  [[nodiscard]] Millis retry_after() const noexcept { return retry_after_; }

 private:
  Millis retry_after_;
};

// The key was used with another payload: a bug of the caller.
class Mismatch : public Rejected {
 public:
  using Rejected::Rejected;
};

// The operation began, and its outcome is not known: an operator or a callback decides.
class OutcomeUnknown : public Rejected {
 public:
  using Rejected::Rejected;
};

// A stored failure, replayed. code() is the failing attempt's.
class StoredFailure : public Rejected {
 public:
  using Rejected::Rejected;
  // Failure::code: an exception's type, unless the work set one by FailureCode.
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

// The invocation in which the call was made ends too soon: see once/engine/within_invocation.hpp. Nothing was run.
class NoTimeLeft : public Rejected {
 public:
  using Rejected::Rejected;
};

// The store failed. kind(): unavailable if the claim was certainly not written, in_doubt if it may have been.
class StoreFailed : public Rejected {
 public:
  using Rejected::Rejected;
};

// The writes that were to commit with the result (Context::commit_with) were refused, so neither is written. kind():
// unavailable if one of their conditions did not hold, misuse if they can never be written. Policies treat it as an
// exception of the work.
class Declined : public Rejected {
 public:
  using Rejected::Rejected;
};

// The work ran, but its finish could not be written. Thrown with OnUnrecorded::fail, or if other writes were to commit
// with the result.
class Unrecorded : public Rejected {
 public:
  using Rejected::Rejected;
};

}  // namespace once
