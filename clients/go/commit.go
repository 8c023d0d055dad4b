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
		c.startRenewing(0)
		return c.explained(err)
	}
	c.inDoubt = nil // An earlier Commit was rolled back: the claim was there.
	if err := tx.Commit(); err != nil {
		if !isRolledBack(sqlState(err)) {
			c.inDoubt = body
		}
		c.startRenewing(0)
		return fmt.Errorf("once: the transaction of %q failed as it was committed: %w", c.Key, err)
	}
	c.inDoubt = nil
	if c.begin() == nil {
		// Ends the claim in the server, which would find out by its next renewal. What is committed is not released.
		reason := []byte(`{"reason":"COMMIT rolled back"}`)
		go c.client.send(context.WithoutCancel(ctx), "POST", c.path("release"), reason, jsonType, c.client.timeout)
	}
	return nil
}

// explained says what the store's function, or its absence, means for the work.
func (c *Claim) explained(err error) error {
	switch sqlState(err) {
	case "ON001":
		if c.inDoubt == nil {
			c.isUnseen = true
			return fail(ErrClaimLost, "nothing is committed: this transaction does not find the claim of %q. Another attempt or an "+
				"operator has taken it. Or the transaction began before the claim, under repeatable read; or it is in another "+
				"database than the store's: %v", c.Key, err)
		}
	case "42883", "3F000":
		return fmt.Errorf("once: nothing is committed: the transaction's database has no %s.finish_or_raise(). It must be the "+
			"store's: name its schema by Config.Schema, and run `once table create` after an upgrade: %w", c.client.schema, err)
	case "42501":
		return fmt.Errorf("once: nothing is committed: the connection's role may not finish claims: run `once table create "+
			"--role ROLE`: %w", err)
	}
	return fmt.Errorf("once: nothing is committed for %q: %w", c.Key, err)
}

// isRolledBack is whether this error of COMMIT says so. A connection that broke says nothing, and neither does a pooler's
// word that its own connection to the database did.
func isRolledBack(state string) bool {
	if len(state) != 5 || state == "40003" {
		return false
	}
	class := state[:2]
	return class != "08" && class != "57" && class != "58" && class != "XX"
}

// sqlState is empty if the server has not answered. Drivers agree on this method.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}
