"""HTTP below the routes: connections, middleware, errors and compression."""
