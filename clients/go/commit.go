package once

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Tx is a transaction in the database that is the store: a *sql.Tx.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
	Rollback() error
}

// Commit records the result in the work's own transaction, and commits it: both, or neither. The store is PostgreSQL, and
// tx is in its database. It goes last, outside of savepoints, and the work returns the same result:
//
//	return receipt, once.Commit(ctx, tx, receipt)
//
// An attempt that lost its claim commits nothing, and gets ErrClaimLost. After any other error the transaction is rolled
// back and the claim is still the work's: after a deadlock or a serialization failure it may repeat the transaction. If the
// connection broke while it committed, Func and Call find out which it was.
func Commit[R any](ctx context.Context, tx Tx, result R) error {
	err := commit(ctx, tx, result)
	if err != nil {
		_ = tx.Rollback() // It may have ended already.
	}
	return err
}

func commit(ctx context.Context, tx Tx, result any) error {
	claim := ClaimFrom(ctx)
	if claim == nil {
		if switches[strings.ToLower(os.Getenv("ONCE_DISABLED"))] { // Func has reported it.
			return tx.Commit()
		}
		return fail(ErrRefused, "nothing is committed: no claim is in this context; pass on the one of the work")
	}
	if !claim.isOfWork || claim.owner == "" || claim.storedKey == "" {
		return fail(ErrRefused, "nothing is committed: the claim of %q is not one of Func or Call, or of a server that this package does not know", claim.Key)
	}
	body, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("once: nothing is committed: the result of %q is not JSON: %w", claim.Key, err)
	}
	if len(body) > maxResultBytes {
		return fail(ErrTooLarge, "nothing is committed: the result of %q has %d bytes", claim.Key, len(body))
	}
	if err := claim.Check(ctx); err != nil {
		return err
	}
	return claim.commit(ctx, tx, body)
}

func (c *Claim) commit(ctx context.Context, tx Tx, body []byte) error {
	c.stop() // A renewal that found the claim finished would take it for lost.
	finish := "SELECT " + c.client.schema + ".finish_or_raise($1::text, $2::text, $3::bytea, $4::text, $5::text::interval)"
	retention := fmt.Sprintf("%d milliseconds", c.retention.Milliseconds())
	if _, err := tx.ExecContext(ctx, finish, c.storedKey, c.owner, body, jsonType, retention); err != nil {
		if sqlState(err) == "ON001" && c.inDoubt == nil {
			return c.errLost()
		}
		c.startRenewing()
		return fmt.Errorf("once: nothing is committed for %q: %w", c.Key, err)
	}
	if err := tx.Commit(); err != nil {
		if sqlState(err) == "" { // The server has not said that it rolled back.
			c.inDoubt = body
		}
		c.startRenewing()
		return fmt.Errorf("once: the transaction of %q failed as it was committed: %w", c.Key, err)
	}
	if c.begin() == nil {
		// The server would find out by its next renewal, and holds the claim until then.
		go c.client.send(context.WithoutCancel(ctx), "POST", c.path("complete"), body, jsonType, c.client.timeout)
	}
	return nil
}

// sqlState is empty if the server has not answered. Drivers agree on this method.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}
