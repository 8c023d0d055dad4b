// Run by go_test.py: once.Commit with database/sql and PostgreSQL. ONCE_SERVER names a server on ONCE_TEST_DATABASE.
package clients

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"once.invalid/once"
)

type receipt struct {
	Order   string
	Attempt int64
}

type shop struct {
	*testing.T
	db     *sql.DB
	client *once.Client
}

func newShop(t *testing.T) shop {
	client, err := once.New(once.Config{Schema: os.Getenv("ONCE_TEST_SCHEMA"), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("postgres", os.Getenv("ONCE_TEST_DATABASE"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); db.Close() })
	s := shop{t, db, client}
	s.must(db.Exec("CREATE TABLE IF NOT EXISTS charges (id text, n int, UNIQUE (id, n) DEFERRABLE INITIALLY DEFERRED)"))
	return s
}

func (s shop) must(_ any, err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s shop) rows(order string) (count int) {
	s.Helper()
	s.must(nil, s.db.QueryRow("SELECT count(*) FROM charges WHERE id = $1", order).Scan(&count))
	return count
}

// begin starts a transaction that has written one row.
func (s shop) begin(ctx context.Context, order string, n int) *sql.Tx {
	s.Helper()
	tx, err := s.db.BeginTx(ctx, nil)
	s.must(tx, err)
	s.must(tx.ExecContext(ctx, "INSERT INTO charges VALUES ($1, $2)", order, n))
	return tx
}

// charge runs work once. The attempts of a claim that was released count from 1 again.
func (s shop) charge(order string, work func(ctx context.Context, made receipt) error, given ...once.Option) (receipt, error) {
	return once.Call(context.Background(), s.client, "charge", order, nil, func(ctx context.Context, claim *once.Claim) (receipt, error) {
		made := receipt{order, claim.Attempt}
		return made, work(ctx, made)
	}, given...)
}

func (s shop) want(order string, got receipt, err error, attempt int64, rows int) {
	s.Helper()
	if err != nil || got != (receipt{order, attempt}) || s.rows(order) != rows {
		s.Fatalf("%+v, %v, %d rows", got, err, s.rows(order))
	}
}

func TestRowsAndResultAreCommittedTogether(t *testing.T) {
	s := newShop(t)
	for i := 0; i < 3; i++ {
		got, err := s.charge("a", func(ctx context.Context, made receipt) error {
			return once.Commit(ctx, s.begin(ctx, "a", 1), made)
		}, once.Retention(time.Hour), once.HoldOnLapse())
		s.want("a", got, err, 1, 1)
	}
	var hours float64 // A claim under hold does not expire, and its record says nothing of the retention.
	s.must(nil, s.db.QueryRow(`SELECT (max(expires_at_ms) - extract(epoch FROM now()) * 1000) / 3600000 FROM "`+os.Getenv("ONCE_TEST_SCHEMA")+`".records`).Scan(&hours))
	if hours < 0.9 || hours > 1.1 {
		t.Fatalf("it is kept for %v hours", hours)
	}
}

func TestFailedWorkCommitsNothing(t *testing.T) {
	s := newShop(t)
	declined := errors.New("declined")
	if _, err := s.charge("a-1", func(ctx context.Context, made receipt) error {
		return errors.Join(declined, s.begin(ctx, "a-1", 1).Rollback())
	}); !errors.Is(err, declined) {
		t.Fatal(err)
	}
	got, err := s.charge("a-1", func(ctx context.Context, made receipt) error { return once.Commit(ctx, s.begin(ctx, "a-1", 1), made) })
	s.want("a-1", got, err, 1, 1)
}

func TestLostClaimCommitsNothing(t *testing.T) {
	s := newShop(t)
	_, err := s.charge("b", func(ctx context.Context, made receipt) error {
		tx := s.begin(ctx, "b", 1)
		release := exec.Command(os.Getenv("ONCE_PROGRAM"), "release", "--scope", "charge", "--key", "b", "--force", "--reason", "by hand")
		if said, err := release.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return once.Commit(ctx, tx, made)
	})
	if !errors.Is(err, once.ErrClaimLost) || s.rows("b") != 0 {
		t.Fatalf("%v, %d rows", err, s.rows("b"))
	}
}

func TestTransactionIsRepeatedInOneClaim(t *testing.T) {
	s := newShop(t)
	s.must(s.db.Exec("INSERT INTO charges VALUES ('c', 1)"))
	tries := 0
	got, err := s.charge("c", func(ctx context.Context, made receipt) error {
		err := errors.New("not tried")
		for n := 1; err != nil && tries < 5; n++ { // The first one fails in COMMIT, the second one in the finish.
			tries++
			tx := s.begin(ctx, "c", n)
			if n == 2 {
				s.must(tx.ExecContext(ctx, "SAVEPOINT one"))
			}
			err = once.Commit(ctx, tx, made)
		}
		return err
	})
	s.want("c", got, err, 1, 2)
	if tries != 3 {
		t.Fatalf("%d tries", tries)
	}
}

// brokenTx loses the answer to COMMIT, or the request.
type brokenTx struct {
	*sql.Tx
	isDone bool
}

func (b brokenTx) Commit() error {
	if b.isDone {
		return errors.Join(driver.ErrBadConn, b.Tx.Commit())
	}
	return errors.Join(driver.ErrBadConn, b.Tx.Rollback())
}

func TestDoubtfulCommitIsFoundOut(t *testing.T) {
	s := newShop(t)
	for name, given := range map[string][]once.Option{
		"d-release": nil, "d-hold": {once.OnError(func(error) once.Fate { return once.Hold })}, "d-store": {once.OnError(func(error) once.Fate { return once.Store })},
	} {
		got, err := s.charge(name, func(ctx context.Context, made receipt) error {
			return once.Commit(ctx, brokenTx{s.begin(ctx, name, 1), true}, made)
		}, given...)
		s.want(name, got, err, 1, 1)
	}
	lost := func(ctx context.Context, made receipt) error {
		return once.Commit(ctx, brokenTx{s.begin(ctx, "e", 1), false}, made)
	}
	if _, err := s.charge("e", lost); !errors.Is(err, driver.ErrBadConn) || s.rows("e") != 0 {
		t.Fatalf("%v, %d rows", err, s.rows("e"))
	}
	// It repeats the transaction, whose first try was committed.
	got, err := s.charge("e", func(ctx context.Context, made receipt) error {
		if err := once.Commit(ctx, brokenTx{s.begin(ctx, "e", 1), true}, made); err == nil {
			t.Error("no error")
		}
		return once.Commit(ctx, s.begin(ctx, "e", 2), receipt{"other", 0})
	})
	s.want("e", got, err, 1, 1)
}

func TestIsolation(t *testing.T) {
	s := newShop(t)
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		begin := func(ctx context.Context, order string) *sql.Tx {
			tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			s.must(tx, err)
			s.must(tx.ExecContext(ctx, "INSERT INTO charges VALUES ($1, 1)", order)) // Its snapshot is of now.
			return tx
		}
		order := level.String()
		got, err := s.charge(order, func(ctx context.Context, made receipt) error {
			tx := begin(ctx, order)
			_, err := once.Step(ctx, once.ClaimFrom(ctx), "written", func(context.Context) (int, error) { return 1, nil })
			s.must(nil, err) // Since the snapshot, as a renewal is.
			var state interface{ SQLState() string }
			if err := once.Commit(ctx, tx, made); !errors.As(err, &state) || state.SQLState() != "40001" {
				t.Error(err)
			}
			return once.Commit(ctx, begin(ctx, order), made)
		})
		s.want(order, got, err, 1, 1)
		early := order + " early" // Before the claim, which it does not see. The next call need not wait for a lease.
		tx := begin(context.Background(), early)
		_, err = s.charge(early, func(ctx context.Context, made receipt) error { return once.Commit(ctx, tx, made) })
		if !errors.Is(err, once.ErrClaimLost) || !strings.Contains(err.Error(), "repeatable read") {
			t.Fatal(err)
		}
		got, err = s.charge(early, func(ctx context.Context, made receipt) error {
			return once.Commit(ctx, begin(ctx, early), made)
		}, once.Wait(0))
		s.want(early, got, err, 1, 1)
	}
}

func TestOtherDatabaseIsSaid(t *testing.T) {
	s := newShop(t)
	other, err := sql.Open("postgres", strings.Replace(os.Getenv("ONCE_TEST_DATABASE"), "/once_1", "/template1", 1))
	s.must(other, err)
	defer other.Close()
	_, err = s.charge("h", func(ctx context.Context, made receipt) error {
		tx, err := other.BeginTx(ctx, nil)
		s.must(tx, err)
		return once.Commit(ctx, tx, made)
	})
	if err == nil || !strings.Contains(err.Error(), "must be the store's") {
		t.Fatal(err)
	}
	got, err := s.charge("h", func(ctx context.Context, made receipt) error { return once.Commit(ctx, s.begin(ctx, "h", 1), made) }, once.Wait(0))
	s.want("h", got, err, 1, 1)
}

func TestWorkThatGoesOnInDoubtGetsTheResult(t *testing.T) {
	s := newShop(t)
	got, err := s.charge("i", func(ctx context.Context, made receipt) error {
		if err := once.Commit(ctx, brokenTx{s.begin(ctx, "i", 1), true}, made); err == nil {
			t.Error("no error")
		}
		return fmt.Errorf("as a renewal reports it: %w", once.ErrClaimLost)
	})
	s.want("i", got, err, 1, 1)
}

// pooledTx gets a pooler's word that its connection to the database broke.
type pooledTx struct{ *sql.Tx }

func (p pooledTx) Commit() error {
	return errors.Join(&pq.Error{Code: "08P01", Message: "server conn crashed?"}, p.Tx.Commit())
}

func TestDoubtThatIsNotReturnedRecordsNothing(t *testing.T) {
	s := newShop(t)
	_, err := s.charge("g", func(ctx context.Context, made receipt) error {
		if err := once.Commit(ctx, brokenTx{s.begin(ctx, "g", 1), false}, made); err == nil {
			t.Error("no error")
		}
		return nil
	})
	if !errors.Is(err, once.ErrUnrecorded) || s.rows("g") != 0 {
		t.Fatalf("%v, %d rows", err, s.rows("g"))
	}
	got, err := s.charge("g", func(ctx context.Context, made receipt) error {
		return once.Commit(ctx, pooledTx{s.begin(ctx, "g", 1)}, made)
	})
	s.want("g", got, err, 1, 1)
}

func TestCommitNeedsTheWorksClaim(t *testing.T) {
	s := newShop(t)
	ctx := context.Background()
	claim, _, err := s.client.Begin(ctx, "adapter", "f", nil)
	s.must(claim, err)
	defer claim.Lapse()
	for _, ctx := range []context.Context{ctx, once.WithClaim(ctx, claim)} { // An adapter's result is not JSON.
		if err := once.Commit(ctx, s.begin(ctx, "f", 1), 1); !errors.Is(err, once.ErrRefused) {
			t.Fatal(err)
		}
	}
	if s.rows("f") != 0 {
		t.Fatal("it was committed")
	}
	t.Setenv("ONCE_DISABLED", "1")
	charge := once.Func(s.client, "disabled", func(order string) string { return order },
		func(ctx context.Context, order string) (int, error) {
			return 1, once.Commit(ctx, s.begin(ctx, order, 1), 1)
		})
	s.must(charge(ctx, "f"))
	if s.rows("f") != 1 {
		t.Fatal("it was not committed")
	}
}
